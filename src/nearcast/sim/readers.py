"""Programs of a simulation that read the log, and the check of what they got."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from nearcast.core.client.log_reader import LogReader, Start
from nearcast.core.model.message import Kept, Lost, Message
from nearcast.core.wire.effects import Done, Failed
from nearcast.errors import UsageError
from nearcast.sim.kept import kept_in, left_lives
from nearcast.sim.process import Process

if TYPE_CHECKING:
    from nearcast.core.model.membership import Membership
    from nearcast.sim.world import World

LOG = "kept"
RETRY_S = 0.1
COMMIT_S = 0.7
COMMITTED_SHARE = 0.3  # of the times at which something was taken
SLOW_SHARE = 0.5  # of the times at which something could be taken, but is not yet

Number = tuple[bytes, int, int]  # topic, publisher, sequence


class Reader:
    """Reads the log, alone or in a group, and writes down what it got. It begins when there is a log."""

    def __init__(self, world: World, index: int, *, group: str = "") -> None:
        self.world = world
        self.name = f"reader {index}"
        self.group = group
        self.machine = world.new_client(self.name)
        self.process = Process(world, self.name, self.machine, world.new_clock())
        self.process.after = self._after
        self.events: list[tuple[float, Kept]] = []
        self.reader: LogReader | None = None
        self.began = False
        self.committed = 0  # answered commits
        self.refused = 0  # commits of what another member reads by now
        world.seed_client(self.machine, self.process.now_s)
        self.process.settle()
        world.timeline.after(RETRY_S, self.process.serve, self._begin)
        if group:
            world.timeline.after(COMMIT_S, self.process.serve, self._commit)

    def _begin(self) -> None:
        if self.reader is None:
            try:
                self.reader = self.machine.readers.read(
                    LOG, Start.EARLIEST, group=self.group, token=self, now_s=self.process.now_s
                )
            except UsageError:  # it was not created yet
                self.world.timeline.after(RETRY_S, self.process.serve, self._begin)
        self.process.settle()

    def _after(self) -> None:
        for effect in self.machine.effects:
            if isinstance(effect, Done):
                self.began = self.began or effect.token is self
                self.committed += effect.token is not self
            elif isinstance(effect, Failed):
                self.refused += 1
        self.machine.effects.clear()
        self.machine.readers.woken.clear()
        self._take()

    def _take(self) -> None:
        rng, reader = self.world.rng, self.reader
        if reader is None or not reader.ready or rng.random() < SLOW_SHARE:
            return
        while reader.ready and rng.random() > 0.05:
            delivery = reader.ready.popleft()
            if reader.taken(delivery):
                self.events.append((self.world.timeline.now_s, delivery.event))
        if self.group and rng.random() < COMMITTED_SHARE:
            reader.commit("commit", self.process.now_s)

    def _commit(self) -> None:
        """Members wait for what others have not committed, so every program does it now and then."""
        if self.reader is not None and not self.reader.closed:
            self.reader.commit("commit", self.process.now_s)
            self.process.settle()
        self.world.timeline.after(COMMIT_S, self.process.serve, self._commit)

    @property
    def lost(self) -> set[str]:
        """The lives it was told are lost."""
        return {event.part for _, event in self.events if isinstance(event, Lost)}

    @property
    def numbers(self) -> list[Number]:
        """What it got, in order."""
        return [
            (event.topic.encode(), event.publisher, event.sequence)
            for _, event in self.events
            if isinstance(event, Message) and event.publisher is not None and event.sequence is not None
        ]

    def unfinished(self, membership: Membership) -> list[str]:
        """What it has not read yet, if it is alone."""
        if self.group or not self.process.alive:
            return []
        if self.reader is None or not self.began:
            return [f"{self.name} has not begun"]
        if self.reader.ready:
            return [f"{self.name} has something to take"]
        found = [f"{self.name} waits for {life}" for life in self.reader.parts if self.reader.parts[life].lines]
        for life, part in self.reader.parts.items():
            stream = self.world.hosts[part.broker].server.keys.stream(part.keys.stream) if part.broker else None
            if stream is not None and stream.records and part.delivered < stream.records[-1][0]:
                found.append(f"{self.name} has not read {life}")
        known = {membership.life(broker) for broker in membership.brokers}
        return found + [f"{self.name} does not know {life}" for life in sorted(known - self.reader.parts.keys())]


class Readers:
    """The readers of a world: some alone, some in one group."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.all: list[Reader] = []

    def begin(self, alone: int, members: int, until_s: float) -> None:
        """Start them; all members but one crash at some moment, and are replaced."""
        world = self._world
        self.all += [Reader(world, index) for index in range(alone)]
        group = [Reader(world, alone + index, group="group") for index in range(members)]
        self.all += group
        for member in group[1:]:
            world.timeline.after(world.rng.random() * until_s, self._replace, member)

    def _replace(self, member: Reader) -> None:
        member.process.crash()
        self.all.append(Reader(self._world, len(self.all), group=member.group))

    @property
    def members(self) -> list[Reader]:
        return [reader for reader in self.all if reader.group]

    def unread(self, membership: Membership) -> list[str]:
        """What they have not read."""
        if not self.all or not membership.logs:
            return []
        return [what for reader in self.all for what in reader.unfinished(membership)] + self.missed_by_group()

    def missed_by_group(self) -> list[str]:
        """What no member of the group got."""
        if not self.members:
            return []
        taken = {number for reader in self.members for number in reader.numbers}
        lost = {life for reader in self.members for life in reader.lost}
        return missing_of("the group", self._world, taken, lost)


# --- the check


def check_read(world: World) -> list[str]:
    """Invariant 13: a reader gets what is kept once, in its publishers' order, or hears that it is lost."""
    wrong = []
    for reader in world.readers.all:
        if reader.group:
            wrong += _check_first_times(reader.name, reader.numbers)
        elif reader.process.alive:
            wrong += _check_order(world, reader.name, reader.numbers)
            wrong += missing_of(reader.name, world, set(reader.numbers), reader.lost)
    return wrong + world.readers.missed_by_group()


def _check_order(world: World, name: str, numbers: list[Number]) -> list[str]:
    """What was kept in several parts, because a life was lost, may be read several times.

    Not so with a quorum, unless a broker has left for good while the publisher slept: nobody can tell it any more.
    """
    wrong, left = _check_first_times(name, numbers), left_lives(world)
    for number, times in Counter(numbers).items():
        streams = world.history.kept_in[number]
        gone = any(_life(stream).encode() in left for stream in streams)
        if times > (len(streams) if world.setup.quorum == 1 or gone else 1):
            wrong.append(f"invariant 13: {name} got {_text(number)} {times} times")
    return wrong


def _check_first_times(name: str, numbers: list[Number]) -> list[str]:
    wrong, last = [], dict[tuple[bytes, int], int]()
    for topic, publisher, sequence in dict.fromkeys(numbers):
        before = last.get((topic, publisher), 0)
        if sequence < before:
            wrong.append(f"invariant 13: {name} got {_text((topic, publisher, sequence))} after {before}")
        last[topic, publisher] = max(before, sequence)
    return wrong


def missing_of(name: str, world: World, numbers: set[Number], lost: set[str]) -> list[str]:
    """What is kept and was neither read nor reported as lost.

    With a quorum, what a server had kept alone is gone when it dies, and its publisher knows.
    """
    missing = [
        number
        for number, streams in world.history.kept_in.items()
        if number not in numbers and not all(_life(stream) in lost for stream in streams)
    ]
    if missing and world.setup.quorum > 1:
        there = {(topic, publisher, n) for _, topic, publisher, found in kept_in(world) for n in found}
        missing = [number for number in missing if number in there]
    return [f"invariant 13: {name} misses {_text(number)}, which is kept" for number in missing]


def _life(stream: bytes) -> str:
    return stream.decode().split(":", 3)[3]


def _text(number: Number) -> str:
    topic, publisher, sequence = number
    return f"{topic!r} {publisher:x} #{sequence}"
