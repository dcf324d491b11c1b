"""How one topic subscriber is attached to brokers, and what it receives there (PROTOCOL, subscriber rules 1-4).

Readiness says whether the subscriber held the next placement before anyone could write there (rule 3).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from nearcast.core.client.news import not_found, unheard_of
from nearcast.core.client.ordering import PublisherOrder
from nearcast.core.client.repairs import Repairs
from nearcast.core.model.counters import ReceiveMeter
from nearcast.core.model.names import readiness_channel
from nearcast.core.model.placement import Mode, Record, Unreadable
from nearcast.core.wire.backend import Denied

if TYPE_CHECKING:
    from nearcast.core.client.subscriber import TopicSubscriber
    from nearcast.core.model.message import Event
    from nearcast.core.wire.backend import ClientLink


_NONE: frozenset[int] = frozenset()  # shared by all: most topics are not moving


class Attachment:
    """One subscriber's hold on one topic at one broker (rules 1 and 4).

    Roles are the epochs whose frames are expected here. A fence permanently removes the roles below it.
    """

    __slots__ = (
        "_topic_subscriber",
        "broker",
        "doubted",
        "fenced",
        "floor",
        "linger_until_s",
        "link",
        "open",
        "proven",
        "ready",
        "roles",
        "unconfirmed",
    )

    def __init__(self, topic_subscriber: TopicSubscriber, broker: str) -> None:
        self._topic_subscriber = topic_subscriber
        self.broker = broker
        self.link: ClientLink | None = None
        self.open = False  # subscribed, and the record of this broker was read after that
        self.doubted = False  # its record is being read again, because a frame had an epoch that no record announced
        self.unconfirmed = False  # the broker has no record of a topic that lives there by first use
        self.roles: tuple[int, ...] = ()
        self.fenced = 0  # the newest epoch this broker has switched to
        self.floor = 0
        self.linger_until_s: float | None = None
        self.ready = _NONE  # epochs whose readiness channel is held here
        self.proven = _NONE  # epochs whose readiness channel was in place here before their fence

    def frames(self, payloads: list[bytes], now_s: float) -> None:
        self._topic_subscriber.frames(self, payloads, now_s)

    @property
    def newest(self) -> int:
        upcoming = self._topic_subscriber.upcoming
        return max(self._topic_subscriber.epoch, upcoming.epoch if upcoming is not None else 0)

    def admits(self, epoch: int) -> bool:
        return epoch in self.roles

    def give(self, role: int) -> None:
        if role >= self.fenced:
            if role not in self.roles:
                self.roles += (role,)
            self.linger_until_s = None

    def fence(self, epoch: int) -> None:
        """This broker has switched to the epoch."""
        if epoch > self.fenced:
            self.fenced = epoch
            self.roles = tuple(role for role in self.roles if role >= epoch)

    def awaits_fence(self, epoch: int) -> bool:
        """Whether frames of an older epoch than this may still come from here."""
        return self.open and self.fenced < epoch and bool(self.roles) and min(self.roles) < epoch

    def leased(self, now_s: float) -> bool:
        return self.link is not None and now_s <= self.link.lease_until_s

    def lose(self) -> None:
        self.link = None
        self.open = self.unconfirmed = self.doubted = False
        self.ready = self.proven = _NONE
        self.fenced = self.floor = 0  # the record is read again after the next subscribe

    def say_ready(self, topic: bytes, epoch: int) -> bool:
        """Hold the readiness channel of the epoch here. Returns whether it was not held before."""
        if self.link is None or not self.open or epoch in self.ready or epoch <= self.fenced:
            return False
        self.ready |= {epoch}
        self.link.subscribe(
            readiness_channel(topic, epoch), refused=partial(self._topic_subscriber.denied, self, self.link)
        )
        return True

    def stale_readiness(self, topic: bytes, before: int) -> list[bytes]:
        """Release the readiness channels of epochs up to `before`, and return their names."""
        stale = [epoch for epoch in self.ready if epoch <= before]
        self.ready = self.ready.difference(stale)
        return [readiness_channel(topic, epoch) for epoch in stale]


def look_again(topic_subscriber: TopicSubscriber, attachment: Attachment) -> None:
    """Read the record again: a frame was dropped because no record has announced its epoch.

    The record may have been lost on its way to us. Or the frame is forged, as anyone who may publish can do, so the
    record on the server decides.
    """
    link = attachment.link
    if link is None or attachment.doubted:
        return
    attachment.doubted, since_s, known = True, link.sound_s, attachment.newest

    def read(record: Record | Unreadable | Denied | None, now_s: float) -> None:
        if attachment.link is not link:
            return
        attachment.doubted = False
        if isinstance(record, Record) and record.epoch > known:  # so messages since then may have been dropped
            error = unheard_of(link.broker)
            topic_subscriber.interrupt(str(error), since_s, now_s)
            if record.epoch > attachment.newest:  # otherwise the record has reached us on another way meanwhile
                topic_subscriber.refuse(error, now_s)

    link.read_record(topic_subscriber.topic, topic_subscriber.client.membership, read)


def unready(topic_subscriber: TopicSubscriber, record: Record, readers: tuple[str, ...]) -> str | None:
    """Why we may have missed messages at this switch, or None if we cannot have missed any."""
    held = [topic_subscriber.attachments.get(reader) for reader in readers]
    if not all(attachment is not None and attachment.open for attachment in held):
        return "the topic moved before this subscription was attached to its new brokers"
    if record.forced and not _proven(topic_subscriber, record.epoch):
        return "the topic was moved by force"
    return None


def _proven(topic_subscriber: TopicSubscriber, epoch: int) -> bool:
    """Whether we held the new placement before any publisher could write there, although the move was forced."""
    if topic_subscriber.placement is None or topic_subscriber.placement.mode is Mode.ALL_PUBLISHERS:
        return False  # a member we do not read from may have switched before we were ready
    readers = topic_subscriber.placement.readers(topic_subscriber.client.client_id)
    held = [topic_subscriber.attachments.get(reader) for reader in readers]
    return all(attachment is not None and epoch in attachment.proven for attachment in held)


def say_ready(topic_subscriber: TopicSubscriber) -> None:
    """Declare readiness wherever the topic is held, once every reader of the next placement is open."""
    upcoming = topic_subscriber.upcoming
    if upcoming is None:
        return
    readers = [
        topic_subscriber.attachments.get(reader) for reader in upcoming.readers(topic_subscriber.client.client_id)
    ]
    if not all(reader is not None and reader.open for reader in readers):
        return
    for attachment in topic_subscriber.attachments.values():
        if attachment.say_ready(topic_subscriber.topic, upcoming.epoch):
            _prove(topic_subscriber, attachment, upcoming.epoch)


def _prove(topic_subscriber: TopicSubscriber, attachment: Attachment, epoch: int) -> None:
    """Read the record after declaring readiness: if it still has an older epoch, readiness preceded the fence."""
    link = attachment.link
    assert link is not None

    def read(record: Record | Unreadable | Denied | None, now_s: float) -> None:
        if attachment.link is link and isinstance(record, Record):
            if record.epoch < epoch:
                attachment.proven |= {epoch}
            topic_subscriber.record(link.broker, record, now_s)

    link.read_record(topic_subscriber.topic, topic_subscriber.client.membership, read)


# --- reception


class Reception:
    """What has arrived for one topic: put in order, counted, with repairs requested for its holes.

    It begins with the first message and ends when its publishers are forgotten. Most of a client's topics are silent,
    so they cost next to nothing.
    """

    __slots__ = ("foreign", "lines", "meter", "repairs")

    def __init__(self, topic_subscriber: TopicSubscriber) -> None:
        client = topic_subscriber.client
        self.lines = PublisherOrder(topic_subscriber.name, topic_subscriber, client.timing, client.limits)
        self.repairs = Repairs(client, topic_subscriber.topic, self.lines)
        self.meter = ReceiveMeter()
        self.foreign = False  # whether the events taken last include messages without our envelope

    @property
    def unsettled(self) -> bool:
        """Whether frames are held, holes are open or repairs are in progress."""
        return self.lines.unsettled or self.repairs.pending

    def ask_for_holes(self, now_s: float) -> None:
        lines = self.lines
        if lines.wanted:
            wanted, lines.wanted = lines.wanted, {}
            self.repairs.ask(wanted, now_s)

    def forget_silent(self) -> bool:
        """Forget publishers that were silent since the last call. Returns whether there is nothing left to remember."""
        self.lines.forget_silent(self.repairs.asked)
        return not self.lines.last and not self.unsettled

    def take(self, payload_bytes: int) -> list[Event]:
        """The events to hand over."""
        events = self.lines.out
        if events:
            self.lines.out = []
            self.foreign, self.lines.foreign = self.lines.foreign, False
            self.meter.count(events, payload_bytes)
        return events


def route(topic_subscriber: TopicSubscriber, publisher: int) -> list[ClientLink]:
    """The link on which to ask a publisher: to a server it writes to. Empty until all answers can arrive."""
    if topic_subscriber.placement is None:
        return []
    held = [
        topic_subscriber.attachments.get(reader)
        for reader in topic_subscriber.placement.readers(topic_subscriber.client.client_id)
    ]
    if not all(attachment is not None and attachment.open for attachment in held):
        return []
    writers = topic_subscriber.placement.writers(publisher)
    links = [held.link for held in held if held is not None and held.link is not None and held.broker in writers]
    return links[:1]


# --- verification


class Verification:
    """Reads the records of all attached brokers once more (rule 2).

    Everything needed was open before the first of these reads was sent. If the records still say what was known then,
    no move has happened in between, and nothing acknowledged from now on can be missed. There is no timer: either the
    answer comes, however far away the server is, or the link is lost and the topic subscriber starts over.
    """

    __slots__ = ("_held", "_seen", "_topic_subscriber", "_unread")

    def __init__(self, topic_subscriber: TopicSubscriber, held: list[Attachment]) -> None:
        self._topic_subscriber = topic_subscriber
        self._held = held
        self._unread = len(held)
        self._seen = (topic_subscriber.epoch, topic_subscriber.upcoming)

    @property
    def unchanged(self) -> bool:
        return (self._topic_subscriber.epoch, self._topic_subscriber.upcoming) == self._seen

    def start(self) -> None:
        topic_subscriber = self._topic_subscriber
        for attachment in self._held:
            if attachment.link is not None:
                attachment.link.read_record(
                    topic_subscriber.topic, topic_subscriber.client.membership, partial(self._read, attachment)
                )

    def _read(self, attachment: Attachment, record: Record | Unreadable | Denied | None, now_s: float) -> None:
        topic_subscriber, broker = self._topic_subscriber, attachment.broker
        if topic_subscriber.verification is not self:
            return
        if isinstance(record, (Unreadable, Denied)):
            topic_subscriber.refuse(not_found(broker, topic_subscriber.topic, record), now_s)
            return
        self._unread -= 1
        if record is not None:
            topic_subscriber.record(broker, record, now_s)
        elif topic_subscriber.outlived(attachment):
            topic_subscriber.progress(now_s)
        if not self._unread:
            topic_subscriber.verified(self, now_s)
