"""Programs of a simulation that read logs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nearcast.core.client.log_reader import LogReader, Start
from nearcast.core.model.message import Kept, Lost, Message
from nearcast.core.wire.effects import Done, Failed
from nearcast.errors import UsageError
from nearcast.sim.process import Process
from nearcast.sim.reading import missed_by_groups

if TYPE_CHECKING:
    from nearcast.core.model.membership import Membership
    from nearcast.sim.history import Number
    from nearcast.sim.world import Setup, World

RETRY_S = 0.1
COMMIT_S = 0.7
ANSWERED_S = 5.0  # a commit that takes longer, when nothing fails any more, waits for something that never comes
COMMITTED_SHARE = 0.3  # of the times at which something was taken
SLOW_SHARE = 0.5  # of the times at which something could be taken, but is not yet


class Read(msgspec.Struct, frozen=True):
    """What a program reads, and how."""

    log: str = "kept"
    group: str = ""
    holds: bool = False
    start: Start = Start.EARLIEST
    after_s: float = 0.0  # it begins so long after the others
    crashes: bool = False  # at some moment, and another one takes its place
    nap_s: float = 0.0  # for so long it is stopped, at some moment


class Commit:
    """A commit of a program, which waits for its answer."""


class Got(msgspec.Struct, frozen=True):
    """An event that a program has taken."""

    at_s: float
    life: str  # of the part it was in
    event: Kept


class Reader:
    """Reads a log, alone or in a group, and writes down what it got. It begins when there is such a log."""

    def __init__(self, world: World, index: int, read: Read) -> None:
        self.world = world
        self.name = f"reader {index}"
        self.read = read
        self.group = read.group
        self.machine = world.new_client(self.name)
        self.process = Process(world, self.name, self.machine, world.new_clock())
        self.process.after = self._after
        self.events: list[Got] = []
        self.reader: LogReader | None = None
        self.began_s: float | None = None
        self.dropped = False  # its log was
        self._asked_s: dict[object, float] = {}  # commits that were not answered yet
        self.committed = 0  # answered commits
        self.refused = 0  # commits of what another member reads by now
        world.seed_client(self.machine, self.process.now_s)
        self.process.settle()
        world.timeline.after(RETRY_S, self.process.serve, self._begin)
        if self.group:
            world.timeline.after(COMMIT_S, self.process.serve, self._commit)

    def _begin(self) -> None:
        if self.reader is None:
            try:
                self.reader = self.machine.readers.read(
                    self.read.log,
                    self.read.start,
                    group=self.group,
                    holds=self.read.holds,
                    token=self,
                    now_s=self.process.now_s,
                )
            except UsageError:  # it was not created yet
                self.world.timeline.after(RETRY_S, self.process.serve, self._begin)
        self.process.settle()

    def _after(self) -> None:
        for effect in self.machine.effects:
            if isinstance(effect, Done):
                if effect.token is self and self.began_s is None:
                    self.began_s = self.world.timeline.now_s
                self.committed += self._asked_s.pop(effect.token, None) is not None
            elif isinstance(effect, Failed):
                self.refused += self._asked_s.pop(effect.token, None) is not None
        self.machine.effects.clear()
        self.machine.readers.woken.clear()
        self._take()
        if self.reader is not None and self.reader.failure is not None and not self.dropped:
            self.dropped = True
            self.world.readers.begin_again(self)

    def _take(self) -> None:
        rng, reader = self.world.rng, self.reader
        if reader is None or not reader.ready or rng.random() < SLOW_SHARE:
            return
        while reader.ready and rng.random() > 0.05:
            delivery = reader.ready.popleft()
            if reader.taken(delivery):
                self.events.append(Got(self.world.timeline.now_s, delivery.part.life, delivery.event))
        if self.group and rng.random() < COMMITTED_SHARE:
            self._ask_to_commit(reader)

    def _commit(self) -> None:
        """Members wait for what others have not committed, so every program does it now and then."""
        if self.reader is not None and not self.reader.closed:
            self._ask_to_commit(self.reader)
            self.process.settle()
        self.world.timeline.after(COMMIT_S, self.process.serve, self._commit)

    def _ask_to_commit(self, reader: LogReader) -> None:
        token = Commit()
        self._asked_s[token] = self.world.timeline.now_s
        reader.commit(token, self.process.now_s)

    @property
    def log(self) -> str:
        """The key of the log that it reads."""
        return self.reader.log.key if self.reader is not None else ""

    @property
    def lost(self) -> set[str]:
        """The lives it was told are lost."""
        return {got.event.part for got in self.events if isinstance(got.event, Lost)}

    @property
    def numbers(self) -> list[Number]:
        """What it got, in order."""
        return [number for _, number in self.numbers_in]

    @property
    def numbers_in(self) -> list[tuple[str, Number]]:
        """The same, each with the life of the part that it was in."""
        return [
            (got.life, (event.topic.encode(), event.publisher, event.sequence))
            for got in self.events
            if isinstance(event := got.event, Message) and event.publisher is not None and event.sequence is not None
        ]

    def unfinished(self, membership: Membership) -> list[str]:
        """What it has not read yet, if it is alone; commits that are not answered, if it is not."""
        if not self.process.alive or self.dropped:
            return []
        if self.group:
            oldest_s = min(self._asked_s.values(), default=self.world.timeline.now_s)
            late = self.world.timeline.now_s - oldest_s > ANSWERED_S
            return [f"{self.name} got no answer to a commit"] if late else []
        if all(log.name != self.read.log for log in membership.logs):
            return []
        if self.reader is None or self.began_s is None:
            return [f"{self.name} has not begun"]
        if self.reader.ready:
            return [f"{self.name} has something to take"]
        found = [f"{self.name} waits for {life}" for life in self.reader.parts if self.reader.parts[life].lines]
        for life, part in self.reader.parts.items():
            if not part.broker:
                continue
            keys = self.world.hosts[part.broker].server.keys
            stream, total = keys.stream(part.keys.stream), keys.fields(part.keys.totals).get(part.keys.stream, b"0")
            if stream is not None and stream.records and part.delivered < stream.records[-1][0]:
                found.append(f"{self.name} has not read {life}")
            elif 0 <= part.passed < int(total):
                found.append(f"{self.name} does not know yet what it has missed of {life}")
        known = {membership.life(broker) for broker in membership.brokers}
        return found + [f"{self.name} does not know {life}" for life in sorted(known - self.reader.parts.keys())]


class Readers:
    """The readers of a world: some alone, some in groups."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.all: list[Reader] = []

    def begin(self, setup: Setup) -> None:
        """Start them; all members of the first group but one crash at some moment, and are replaced."""
        world = self._world
        self.all += [Reader(world, index, Read()) for index in range(setup.readers)]
        group = [Reader(world, setup.readers + index, Read(group="group")) for index in range(setup.members)]
        self.all += group
        for member in group[1:]:
            world.timeline.after(world.rng.random() * setup.traffic_s, self._replace, member)
        for read in setup.reads:
            world.timeline.after(read.after_s, self._begin, read)

    def _begin(self, read: Read) -> None:
        world = self._world
        reader = Reader(world, len(self.all), read)
        self.all.append(reader)
        left_s = world.setup.traffic_s - read.after_s
        if read.crashes:
            world.timeline.after(world.rng.random() * left_s, self._replace, reader)
        if read.nap_s:
            world.timeline.after(world.rng.random() * left_s, self._nap, reader)

    def _nap(self, reader: Reader) -> None:
        if reader.process.alive and not reader.process.paused:
            self._world.faults.pause(reader.process, reader.read.nap_s)

    def _replace(self, member: Reader) -> None:
        member.process.crash()
        self.begin_again(member)

    def begin_again(self, reader: Reader) -> None:
        """One more reads what this one has read."""
        self.all.append(Reader(self._world, len(self.all), reader.read))

    def groups(self) -> dict[tuple[str, str], list[Reader]]:
        """(log, group) -> its members."""
        found: dict[tuple[str, str], list[Reader]] = {}
        for reader in self.all:
            if reader.group and reader.log:
                found.setdefault((reader.log, reader.group), []).append(reader)
        return found

    def unread(self, membership: Membership) -> list[str]:
        """What they have not read."""
        if not self.all or not membership.logs:
            return []
        return [what for reader in self.all for what in reader.unfinished(membership)] + missed_by_groups(self._world)
