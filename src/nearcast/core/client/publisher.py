"""A topic publisher: what one client publishes on one topic (PROTOCOL, publisher rules 1-8 and 10)."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import TYPE_CHECKING

from nearcast.core.client.entries import Entries
from nearcast.core.client.keeping import FormerLanes, lanes_to
from nearcast.core.client.news import moved
from nearcast.core.client.sending import Entry, Lane, Packing, PublishBuffer
from nearcast.core.model.counters import TopicCounters
from nearcast.core.model.logs import covering
from nearcast.core.model.names import decode_topic
from nearcast.core.model.placement import Placement, Record
from nearcast.core.wire.effects import Failed
from nearcast.errors import ClusterError, PayloadTooLarge, PublishBufferFull, Unavailable

if TYPE_CHECKING:
    from nearcast.core.client.machine import Client
    from nearcast.core.wire.backend import ClientLink


class TopicPublisher:
    """Numbers, sends and resends the messages of one topic.

    Publishing puts a message into the buffer and notes that there is something to send. The commands for many messages
    are built together, when the driver asks what to write. Acknowledging moves a number, not messages. Adopting
    an epoch creates new lanes. Replies that belong to an old lane no longer count: that is the fence as a publisher
    sees it.
    """

    def __init__(self, client: Client, topic: bytes) -> None:
        self.client = client
        self.topic = topic
        self.placement: Placement | None = None
        self.upcoming: Placement | None = None
        self.lanes: tuple[Lane, ...] = ()
        self.sequence = self.acknowledged = client.numbered  # above everything it sent on topics it has since forgotten
        self.logs = covering(client.membership.logs, topic)
        self._logs_version = client.membership.logs_version
        self.logged = 0  # numbers up to this one, as far as we know, are in the log or will never be
        self.tried = 0  # numbers up to this one were sent on connections or in epochs that no longer exist
        self._publisher = client.client_id
        self._window = client.limits.window
        self._window_bytes = client.limits.window_bytes
        self._payload_bytes = client.limits.payload_bytes
        self.epoch = 0
        self._sole: Lane | None = None  # the only lane, open and with nothing to catch up on
        self._first = self.sequence + 1  # number of the first message
        self._buffer = PublishBuffer(self._first)
        self.packing = Packing(topic, client.client_id, self._first)
        self._unsent = False  # whether it is in the client's list of those with something to send
        self._tokens: deque[tuple[int, object | None]] = deque()  # None: the caller was answered, or has left
        self._entries = Entries(self)
        self.former_lanes = FormerLanes(self, self._entries)
        self._leave_at_s: float | None = None
        self._refused = False  # ask for nothing until there is something to send
        self._reported = (self.sequence, 0)
        self._looked_at = -1  # the last number at the previous look

    # --- publishing

    @property
    def has_room(self) -> bool:
        """Whether it can take a message, or has ended and need not."""
        room = self.sequence - self.acknowledged < self._window and self._buffer.bytes < self._window_bytes
        return room or not self._window

    def publish(self, payload: bytes, time_ns: int, token: object) -> int:
        """Take a message to be sent, and return its number; `token` comes back in the client's `acks`.

        If it raises, nothing was taken. Runs for every message: whatever can be done once for many is done in `send`.
        """
        buffer = self._buffer
        size = len(payload)
        sequence = self.sequence + 1
        total = buffer.bytes + size
        if sequence - self.acknowledged >= self._window or total >= self._window_bytes:
            self._fill()
        if size > self._payload_bytes:
            raise PayloadTooLarge(
                f"payload of {size} bytes: the limit is {self._payload_bytes}; "
                "send it in parts, or raise Limits.payload_bytes"
            )
        self.sequence = sequence
        buffer.queue.append(payload)
        buffer.queue.append(time_ns)
        buffer.bytes = total
        if token is not None:
            self._tokens.append((sequence, token))
        if not self._unsent:
            self._unsent = True
            self.client.unsent[self] = self.client.in_flight[self] = None
        return sequence

    def _fill(self) -> None:
        """This message is the last one there is room for, or one too many."""
        if self._window:
            self.client.full[self] = None
        if not self._window or not self.has_room:
            raise PublishBufferFull(
                f"{self.sequence - self.acknowledged} messages wait for acknowledgement: await publish() or drain()"
            )

    def give_up(self, sequence: int) -> bool:
        """The caller stops waiting: a message not sent yet becomes a SKIP, so that no hole is left.

        Returns whether the message was withdrawn: then it was never sent, and never will be.
        """
        index = bisect_left(self._tokens, sequence, key=itemgetter(0))
        if index == len(self._tokens) or self._tokens[index][0] != sequence:
            return False
        self._tokens[index] = (sequence, None)  # it still does not count as published without waiting
        if any(lane.sent >= sequence for lane in self.lanes):
            return False
        self._buffer.empty(sequence)
        return sequence > self.tried

    def send(self) -> None:
        """Hand everything published since the last time to the links."""
        self._unsent = False
        lane = self._sole
        if lane is None or lane.link is None or self._logs_version != self.client.membership.logs_version:
            self.catch_up()
            self.client.attend(self)
        elif lane.sent < self.sequence:
            lane.write({})

    def catch_up(self) -> None:
        """Send on every open lane what it has not sent yet, unless it is unknown how far an earlier one has kept."""
        if self._logs_version != self.client.membership.logs_version:
            self.cover()
        lanes, packed = self.lanes, dict[int, list[bytes]]()
        if self.former_lanes:
            return
        for lane in lanes:
            if lane.link is not None and lane.sent < self.sequence:
                lane.write(packed)
        self._sole = lanes[0] if len(lanes) == 1 and lanes[0].link is not None else None

    def unsent_after(self, sequence: int) -> Iterator[Entry]:
        """What was published after this number."""
        return self._buffer.newest(sequence + 1)

    def commands_of(self, messages: Iterable[Entry]) -> list[bytes]:
        return self.packing.commands(messages, self.epoch)

    def begins_with(self, sequence: int) -> bool:
        """Whether nothing comes before this number any more: the topic was forgotten, and is used again."""
        return sequence == self._first > 1

    # --- acknowledgement

    def count(self, lane: Lane, receivers: list[int]) -> None:
        lane.counted += len(receivers)
        if lane is self._sole:
            done = lane.counted
        else:
            lane.receivers.extend(receivers)
            done = min(other.counted for other in self.lanes)
            counts = [lane.receivers for lane in self.lanes]
            receivers = [sum(count.popleft() for count in counts) for _ in range(done - self.acknowledged)]
        self._acknowledge(done, receivers)

    def refuse(self, sequence: int, error: ClusterError) -> None:
        """A server refuses this message: its caller gets the error, and the line continues after a SKIP."""
        if sequence <= self.acknowledged or not self._buffer.empty(sequence):
            return  # acknowledged in a later epoch, refused by another target before, or given up
        for index, (number, token) in enumerate(self._tokens):
            if number == sequence:
                self._tokens[index] = (number, None)
                if token is not None:
                    self.client.effects.append(Failed(token, error))
                return
        self.client.refusals.note(self.topic, error)

    def refuse_all(self, error: ClusterError) -> None:
        """The topic is not available: everything waiting fails, and what is published later starts over."""
        numbers, waited = range(self.acknowledged + 1, self.sequence + 1), {number for number, _ in self._tokens}
        left = sum(self._buffer.empty(number) and number not in waited for number in numbers)
        if left:
            self.client.refusals.note(self.topic, error, left)
        self.client.effects.extend(Failed(token, error) for token in self.take_tokens())
        self.acknowledged = self.sequence
        self._unsent = False
        for flows in (self.client.in_flight, self.client.unsent):
            flows.pop(self, None)
        self._trim()
        self._refused = True
        self.forget_place()

    def _retire_lanes(self) -> None:
        for lane in self.lanes:
            lane.retire()
        self.lanes, self._sole = (), None

    def begin_again(self, reason: str, now_s: float) -> None:
        """Look for the topic as if it were new to us; what is not acknowledged is sent once it is found."""
        self.forget_place()
        self.client.attend(self)

    def forget_place(self) -> None:
        self._retire_lanes()
        self.placement = self.upcoming = self._leave_at_s = None
        self.epoch = 0
        self.former_lanes.forget()
        self._entries.leave_all()

    def _acknowledge(self, done: int, receivers: list[int]) -> None:
        before, self.acknowledged = self.acknowledged, done
        self.client.active[self] = None
        if done == self.sequence:
            self.client.in_flight.pop(self, None)
        tokens = self._tokens
        if tokens:
            acks = self.client.acks
            while tokens and tokens[0][0] <= done:
                sequence, token = tokens.popleft()
                if token is not None:
                    acks.append((token, receivers[sequence - before - 1]))
        self._trim()

    def _trim(self) -> None:
        """Forget the oldest acknowledged messages beyond the limits of the repair ring."""
        limits = self.client.limits
        self._buffer.trim(self.acknowledged, limits.ring, limits.ring_bytes)

    # --- placement

    def record(self, record: Record, now_s: float) -> None:
        """A record of the topic, from any source. Only newer ones count."""
        if self._at_rest:
            return
        if record.epoch > self.epoch:
            self._adopt(record.placement, now_s)
        elif self.logs and record.epoch == self.epoch:
            self._unblock()
        upcoming = record.next
        if upcoming is not None and upcoming.epoch > self.epoch and upcoming != self.upcoming:
            self.upcoming = upcoming
            for broker in upcoming.writers(self._publisher):
                self._entries.enter(broker, now_s)  # warm the new targets; nothing is sent there yet

    def _adopt(self, placement: Placement, now_s: float) -> None:
        if self.placement is not None:
            self.client.tell(moved(f"publications on {decode_topic(self.topic)!r}", placement))
        self.placement, self.epoch = placement, placement.epoch
        if self.upcoming is not None and self.upcoming.epoch <= placement.epoch:
            self.upcoming = None
        for broker in placement.writers(self._publisher):
            self._entries.enter(broker, now_s)
        self._open_lanes()
        self._leave_at_s = now_s + self.client.timing.linger_s
        self.client.attend(self)

    def _open_lanes(self) -> None:
        """Open lanes as the placement and the logs are now."""
        self._retire_lanes()
        if self.placement is not None:
            self.lanes = lanes_to(self, self.placement.writers(self._publisher))
        for lane in self.lanes:
            lane.link = self._entries.link_to(lane.broker)
        self.catch_up()

    def cover(self) -> None:
        """The logs have changed. At rest we learn of it with the next message: a client may have 100,000 topics."""
        self._logs_version, before = self.client.membership.logs_version, self.logs
        self.logs = covering(self.client.membership.logs, self.topic)
        if self.logs != before:
            self._open_lanes()
        self._unblock()
        self.client.attend(self)

    def has_kept(self, number: int) -> None:
        """A broker has kept everything up to this number. Somebody else may have written there what was never used."""
        self.logged = max(self.logged, min(number, self.sequence))

    def life_lost(self) -> None:
        """A broker has lost what it kept. What was not acknowledged is sent again, and kept again."""
        self.logged = min(self.logged, self.acknowledged)

    def _unblock(self) -> None:
        """Try again where a server was not ready for us."""
        for lane in self.lanes:
            lane.unblock()
        self.catch_up()

    # --- links

    def linked(self, link: ClientLink, now_s: float) -> None:
        self._entries.linked(link)

    def entered(self, link: ClientLink, record: Record | None, kept: int, now_s: float) -> None:
        """From now on we may write to this broker, which has kept everything up to a number."""
        self._refused = False
        if any(lane.must_begin_again() for lane in self.lanes if lane.broker == link.broker):
            self._open_lanes()
        self.has_kept(kept)
        if record is not None:
            self.record(record, now_s)
        for lane in self.lanes:
            if lane.broker == link.broker and lane.link is not link:
                lane.reset()
                lane.link = link
        self.catch_up()

    def unlinked(self, link: ClientLink, now_s: float) -> None:
        """A link is gone. What was in flight on it is sent again on the next one."""
        self._entries.unlinked(link)
        self.former_lanes.unlinked(link)
        for lane in self.lanes:
            if lane.link is link:
                lane.reset()
        self._sole = None
        if self.uses(link.broker):
            self.client.links.want(link.broker, self, now_s)
        self.client.attend(self)

    quorum_lost = unlinked  # what was asked on the quorum link is asked again when we have entered once more

    def leased(self, link: ClientLink, now_s: float) -> None:
        """The link's lease was renewed: replies that waited for it now count."""
        for lane in self.lanes:
            if lane.link is link:
                lane.count_leased(now_s)

    def holds(self, link: ClientLink) -> bool:
        """Whether this topic publisher needs the control channel on the link."""
        return self._entries.holds(link)

    @property
    def unplaced(self) -> bool:
        """Whether the topic lives at its directory by first use, as far as we know."""
        return self.placement is not None and self.placement.unplaced

    def keeper_life(self, broker: str) -> str:
        """The life of a broker that may have kept messages of ours; empty if none can have."""
        return self.client.membership.life(broker) if self.logs or self.former_lanes else ""

    def uses(self, broker: str) -> bool:
        """Whether we need an entry there."""
        return self.writes_to(broker) or self.former_lanes.need(broker)

    def writes_to(self, broker: str) -> bool:
        """Whether we write to the broker, or are about to."""
        members = self.client.membership
        return any(
            broker in placement.writers(self._publisher) and members.has(broker, placement)
            for placement in (self.placement, self.upcoming)
            if placement
        )

    # --- the end

    def unused(self) -> bool:
        """Whether the topic was not used since the last call. Messages waiting since then fail."""
        looked_at, self._looked_at = self._looked_at, self.sequence
        if looked_at > self.acknowledged:
            waited = f"no acknowledgement for {self.client.timing.idle_s:g} s"
            self.refuse_all(Unavailable(f"topic {decode_topic(self.topic)!r}: {waited}; the message may have arrived"))
            return False
        return looked_at == self.sequence and not self.unacknowledged and not self.client.answers.serves(self)

    def end(self) -> None:
        """The topic is not in use: release it. Callers that still hold this topic publisher must get another one."""
        self.forget_place()
        self._window = 0

    # --- repair

    def kept(self, start: int) -> Iterator[Entry]:
        """The acknowledged messages still kept, starting from a number."""
        return self._buffer.between(start, self.acknowledged)

    @property
    def mark(self) -> int:
        """The last acknowledged number; 0 if there is none since the topic was last forgotten."""
        return self.acknowledged if self.acknowledged >= self._first else 0

    # --- time

    def tick(self, now_s: float) -> bool:
        """Returns whether it needs attention again."""
        if self._at_rest:
            return False
        for lane in self.lanes:
            lane.count_leased(now_s)
            if lane.link is None:
                lane.link = self._entries.enter(lane.broker, now_s)
        if self.logs or self.former_lanes:
            self.former_lanes.tick(now_s)
            self._unblock()
        stuck = self.lost(now_s)
        if stuck:
            self.client.finder.ask(self.topic, now_s)
            self._entries.confirm()
        if self._leave_at_s is not None and now_s >= self._leave_at_s:
            self._leave_at_s = None
            self._entries.leave_unused()
        entering = any(lane.link is None and lane.counted < self.sequence for lane in self.lanes)
        return stuck or entering or bool(self.former_lanes) or self._leave_at_s is not None

    def lost(self, now_s: float) -> bool:
        """Whether we need the directory to say where the topic is. Not while we wait in line where it was."""
        if self._at_rest:
            return False
        if self.placement is None or self._entries.unconfirmed:
            return True
        waiting = (lane.broker for lane in self.lanes if lane.counted < self.sequence)
        return not all(self.uses(broker) and self.client.links.serves(broker, now_s) for broker in waiting)

    @property
    def _at_rest(self) -> bool:
        """Whether the topic was refused and nothing is waiting to be sent."""
        return self._refused and self.acknowledged == self.sequence

    def take_counters(self) -> tuple[str, str, TopicCounters] | None:
        """What was published since the last call, and the broker whose agent should know."""
        published_bytes = self._buffer.bytes + self._buffer.forgotten_bytes
        published, size = self.sequence - self._reported[0], published_bytes - self._reported[1]
        if not published or not self.lanes:
            return None
        self._reported = (self.sequence, published_bytes)
        counters = TopicCounters(published=published, published_bytes=size, publishers=1)
        return self.lanes[0].broker, decode_topic(self.topic), counters

    def take_tokens(self) -> list[object]:
        """Remove and return the callers waiting for an acknowledgement; they get another answer."""
        tokens, self._tokens = self._tokens, deque()
        return [token for _, token in tokens if token is not None]

    @property
    def unacknowledged(self) -> int:
        return self.sequence - self.acknowledged
