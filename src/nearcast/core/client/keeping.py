"""Publishing to topics that a log covers (PROTOCOL "Logs").

A broker that keeps a topic is written to in batches, each published and appended to its streams in one step. The server
checks the version of the logs, the epoch and the number, so a batch that comes too late is refused as a whole, and the
publisher knows what has become of it. A message must not be kept twice, so nothing is kept in a new epoch, or on a new
connection, before it is known how far the old one has kept.

If a log has a quorum, its batches take the quorum link (`quorum.py`), and an answer comes only when enough replicas
have what it says. So a number that is known to be kept is kept for good, whatever becomes of the broker.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from nearcast.core.client.entries import Entries, Found
from nearcast.core.client.news import refused
from nearcast.core.client.sending import Entry, Lane
from nearcast.core.model.logs import Log, PartState, keys_of, last_numbers, quorum_of
from nearcast.core.model.placement import Record
from nearcast.core.wire.backend import Denied
from nearcast.core.wire.batches import encode_batch
from nearcast.core.wire.steps import Kept, OtherEpoch, OtherNumber, Outcome, Step

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nearcast.core.client.publisher import TopicPublisher
    from nearcast.core.wire.backend import ClientLink

BATCH_MESSAGES = 256
BATCH_BYTES = 128 << 10  # a longer batch would hold up everything else on its server


class KeptLane(Lane):
    """A lane to the broker that keeps the messages.

    `_round` counts how often the lane has gone back to what was counted: an answer to a batch of an earlier round says
    nothing about those sent since.
    """

    __slots__ = (
        "_keys",
        "_logs",
        "_round",
        "blocked",
        "doubted",
        "epoch",
        "flying",
        "life",
        "logs_version",
        "looking",
        "quorum",
    )

    def __init__(self, topic_publisher: TopicPublisher, broker: str, counted: int, logs: tuple[Log, ...]) -> None:
        super().__init__(topic_publisher, broker, counted)
        self.epoch = topic_publisher.epoch
        self.logs_version = topic_publisher.client.membership.logs_version  # of the last batch
        self.blocked = False  # the server is not ready for us: try again later
        self.flying = 0  # batches without an answer
        self.doubted = 0  # numbers up to this one were sent on connections that were lost before all answers had come
        self.life = ""  # of the broker that the link leads to
        self.quorum = quorum_of(logs)
        self.looking = False  # a question how far it has kept is on its way
        self._logs = logs
        self._round = 0
        self._keys: tuple[bytes, ...] = ()  # on the server, of the broker's life that the link leads to

    def write(self, packed: dict[int, list[bytes]]) -> None:
        """What is known to be in the log is only published; the rest is published and kept."""
        topic_publisher, link = self.topic_publisher, self.link
        if self.blocked or link is None:
            return
        self._keys = self._keys or self._keys_now()
        if self.sent < topic_publisher.logged:
            again = islice(topic_publisher.unsent_after(self.sent), topic_publisher.logged - self.sent)
            link.publish(topic_publisher.commands_of(again), self)
            self.sent = topic_publisher.logged
        if self.quorum > 1 and self.sent > self.counted + len(self.unleased) and not self.flying:
            return  # they are answered on another connection: what is kept must not be counted before them
        for messages in _batches(topic_publisher.unsent_after(self.sent)):
            self._keep(messages)
        self.sent = topic_publisher.sequence

    def _keys_now(self) -> tuple[bytes, ...]:
        self.life = self._life_now()
        return keys_of(self._logs, self.life)

    def _life_now(self) -> str:
        return self.topic_publisher.client.membership.life(self.broker)

    def must_begin_again(self) -> bool:
        """Yes if the server was restarted, and replicas may have what it had kept: we must know before we go on."""
        if not self.life or self.lives:
            return False
        if self.quorum == 1:
            self.doubted = 0
            self.topic_publisher.life_lost()
        return self.quorum > 1

    @property
    def lives(self) -> bool:
        """Whether the broker it wrote to is still a member: then it can be asked how far it has kept."""
        return self.life == self._life_now()

    @property
    def uncertain(self) -> bool:
        """Whether something that was sent on a lost connection may yet arrive, and be kept.

        A question cannot rule that out: the network may hold old bytes back for longer. Then either what we send again
        was kept first, or the server says up to where it was not.
        """
        return self.doubted > max(self.topic_publisher.logged, self.topic_publisher.acknowledged)

    def _keep(self, messages: list[Entry]) -> None:
        topic_publisher, link = self.topic_publisher, self.link
        assert link is not None
        first, last = messages[0][0], messages[-1][0]
        step = Step(
            topic=topic_publisher.topic,
            epoch=topic_publisher.epoch,
            settled=max(topic_publisher.acknowledged, topic_publisher.logged) + 1,
            first=first,
            last=last,
            batch=encode_batch(
                topic_publisher.epoch,
                topic_publisher.client.client_id,
                first,
                ((payload, time_ns) for _, payload, time_ns in messages),
                begins=topic_publisher.begins_with(first),
            ),
        )
        self.flying += 1
        self.logs_version = topic_publisher.client.membership.logs_version
        answered = partial(self._answered, self._round, step)
        where = (self.logs_version, self._keys, topic_publisher.client.client_id)
        if self.quorum > 1:
            quorum_link = topic_publisher.client.side_links.quorum(link)
            quorum_link.ask(
                topic_publisher, self.quorum - 1, lambda second, then: second.keep(*where, step, then), answered
            )
        else:
            link.keep(*where, step, answered)

    def _answered(self, round_: int, step: Step, outcome: Outcome, now_s: float) -> None:
        topic_publisher = self.topic_publisher
        self.flying -= 1
        if isinstance(outcome, Kept | OtherNumber):
            topic_publisher.has_kept(step.last if isinstance(outcome, Kept) else outcome.last)
        if self.retired:
            if not self.flying and not self.uncertain:
                topic_publisher.former_lanes.answered(self)
        elif round_ == self._round:
            self._take(step, outcome, now_s)

    def _take(self, step: Step, outcome: Outcome, now_s: float) -> None:
        count = step.last - step.first + 1
        if isinstance(outcome, Kept):
            self.replied([outcome.receivers] * count, now_s)
        elif isinstance(outcome, Denied):
            problem = refused(self.broker, "the message", outcome.text)
            for sequence in range(step.first, step.last + 1):
                self.topic_publisher.refuse(sequence, problem)
            self.replied([0] * count, now_s)
        else:
            if not isinstance(outcome, OtherNumber):
                self.blocked = not isinstance(outcome, OtherEpoch) or outcome.epoch < step.epoch
            self._go_back()

    def replied(self, receivers: list[int], now_s: float) -> None:
        super().replied(receivers, now_s)
        if self.quorum > 1 and not self.flying and self.sent < self.topic_publisher.sequence:
            self.topic_publisher.catch_up()

    def _go_back(self) -> None:
        """Send again what was not counted, once that is possible."""
        self._round += 1
        self.sent = self.counted + len(self.unleased)
        self.topic_publisher.client.attend(self.topic_publisher)

    def unblock(self) -> None:
        self.blocked = False

    def retire(self) -> None:
        super().retire()
        if self.flying or self.uncertain:
            self.topic_publisher.former_lanes.add(self)

    def reset(self) -> None:
        if self.flying:
            self.doubted = max(self.doubted, self.sent)
        super().reset()
        self._round += 1
        self.flying = 0
        self.blocked = self.looking = False
        self._keys = ()


def lanes_to(topic_publisher: TopicPublisher, brokers: Sequence[str]) -> tuple[Lane, ...]:
    """One lane to each broker that a message goes to. If a log covers the topic, the first one keeps it."""
    keeper, *others = brokers
    counted, logs = topic_publisher.acknowledged, topic_publisher.logs
    first = KeptLane(topic_publisher, keeper, counted, logs) if logs else Lane(topic_publisher, keeper, counted)
    return (first, *(Lane(topic_publisher, broker, counted) for broker in others))


class HolderQuestion:
    """Asks the holder of a life that has ended how far a lane had kept."""

    def __init__(self, former_lanes: FormerLanes, lane: KeptLane) -> None:
        self._former_lanes = former_lanes
        self._lane = lane

    def linked(self, link: ClientLink, now_s: float) -> None:
        link.users[self] = None
        topic_publisher = self._lane.topic_publisher
        numbers = last_numbers(self._lane.life)
        link.read_number(
            numbers, topic_publisher.topic, topic_publisher.client.client_id, partial(self._answered, link)
        )

    def _answered(self, link: ClientLink, kept: int, now_s: float) -> None:
        link.users.pop(self, None)
        if self._former_lanes.has(self._lane):
            self._former_lanes.told(self._lane, kept)

    def unlinked(self, link: ClientLink, now_s: float) -> None:
        self._former_lanes.untold(self._lane)


class FormerLanes:
    """Retired lanes of which it is not known yet how far they have kept. Until it is, nothing more is kept."""

    __slots__ = ("_asking", "_entries", "_lanes", "_topic_publisher")

    def __init__(self, topic_publisher: TopicPublisher, entries: Entries) -> None:
        self._topic_publisher = topic_publisher
        self._entries = entries
        self._lanes: tuple[KeptLane, ...] = ()
        self._asking: dict[KeptLane, HolderQuestion] = {}

    def __bool__(self) -> bool:
        return bool(self._lanes)

    def add(self, lane: KeptLane) -> None:
        self._lanes += (lane,)

    def answered(self, lane: KeptLane) -> None:
        """It is known how far a lane has kept, or nobody will ever know."""
        self._asking.pop(lane, None)
        self._lanes = tuple(other for other in self._lanes if other is not lane)
        self._topic_publisher.catch_up()

    def forget(self) -> None:
        self._lanes = ()
        self._asking.clear()

    def has(self, lane: KeptLane) -> bool:
        return lane in self._lanes

    @property
    def ended(self) -> list[str]:
        """The lives that have ended and of which it is not known yet what they have kept."""
        return [lane.life for lane in self._lanes if not lane.lives]

    @property
    def quorum(self) -> int:
        """How many servers must have what a broker says it has kept, by the logs of now and those of the lanes."""
        return max(quorum_of(self._topic_publisher.logs), *(lane.quorum for lane in self._lanes), 1)

    def need(self, broker: str) -> bool:
        """Whether the broker can still say how far it has kept."""
        return any(lane.broker == broker and lane.lives for lane in self._lanes)

    def unlinked(self, link: ClientLink) -> None:
        for lane in self._lanes:
            if lane.link is link:
                lane.reset()

    def tick(self, now_s: float) -> None:
        """Ask where the answers were lost with a connection: the broker, or whoever has what it had kept."""
        for lane in self._lanes:
            if not lane.lives:
                self._ask_for_fate(lane, now_s)
            elif lane.uncertain and not lane.looking:
                self._entries.enter(lane.broker, now_s)
                lane.looking = self._entries.look_again(lane.broker, partial(self._looked, lane))
            elif not lane.uncertain and not lane.flying:
                self.answered(lane)

    def _ask_for_fate(self, lane: KeptLane, now_s: float) -> None:
        """The life has ended. If nobody has what it had kept, it is kept again."""
        membership = self._topic_publisher.client.membership
        fate = membership.fate(lane.life, lane.quorum)
        if fate is PartState.LOST:
            self._topic_publisher.life_lost()
            self.answered(lane)
        elif fate is PartState.HELD and lane not in self._asking:
            holder = self._topic_publisher.client.side_links.holder(lane.life)
            if holder is not None:
                self._asking[lane] = question = HolderQuestion(self, lane)
                holder.want(question, now_s)

    def told(self, lane: KeptLane, kept: int) -> None:
        """The holder has said how far the lane had kept."""
        self._topic_publisher.has_kept(kept)
        self.answered(lane)

    def untold(self, lane: KeptLane) -> None:
        """The holder was lost before it could say: ask again."""
        self._asking.pop(lane, None)

    def _looked(self, lane: KeptLane, link: ClientLink, record: Found, kept: int, now_s: float) -> None:
        """What a broker has kept is final once it has switched, or has other logs: it refuses what comes late."""
        lane.looking = False
        self._topic_publisher.has_kept(kept)
        if not isinstance(record, Record) or record.epoch > lane.epoch or link.logs_version > lane.logs_version:
            self.answered(lane)


def _batches(messages: Iterator[Entry]) -> Iterator[list[Entry]]:
    """In order, each of a bounded number and size; a message that is larger than that stands alone."""
    batch: list[Entry] = []
    size = 0
    for message in messages:
        length = len(message[1] or b"")
        if batch and (len(batch) >= BATCH_MESSAGES or size + length > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(message)
        size += length
    if batch:
        yield batch
