"""A topic subscriber: what one client receives of one topic (PROTOCOL, subscriber rules 1-7)."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import TYPE_CHECKING

from nearcast.core.client.attachment import Attachment, Reception, Verification, look_again, route, say_ready, unready
from nearcast.core.client.mailbox import Mailbox
from nearcast.core.client.news import moved, not_found, refused
from nearcast.core.model.counters import SILENT, TopicCounters
from nearcast.core.model.message import Event, Interrupted
from nearcast.core.model.names import decode_topic
from nearcast.core.model.placement import Placement, Record, Unreadable
from nearcast.core.wire.backend import Denied
from nearcast.errors import ClusterError

if TYPE_CHECKING:
    from nearcast.core.client.machine import Client
    from nearcast.core.wire.backend import ClientLink


class TopicSubscriber:
    """Follows the topic's records, which all enter through `record`, from any broker and by any path.

    It holds attachments to the brokers it reads from in the current placement, to those of the next one from PREPARE
    on, and to old ones until shortly after they are fenced. It is *whole* when everything it needs is open and every
    broker, read again after that, says the same. Only then does `subscribe` return. When it stops being whole (a lost
    link, a forced move it was not ready for), it reports `Interrupted`, asks the publishers for repair, and reports
    again when it is whole.
    """

    __slots__ = (
        "_closed",
        "_interrupted",
        "_refused_until_s",
        "attachments",
        "client",
        "epoch",
        "joined",
        "mailboxes",
        "name",
        "placement",
        "reception",
        "topic",
        "upcoming",
        "verification",
        "waiting",
        "whole",
    )

    def __init__(self, client: Client, topic: bytes) -> None:
        self.client = client
        self.topic = topic
        self.name = decode_topic(topic)
        self.attachments: dict[str, Attachment] = {}
        self.mailboxes: tuple[Mailbox, ...] = ()
        self.waiting: tuple[object, ...] = ()  # tokens of subscribe calls that have not returned
        self.placement: Placement | None = None
        self.upcoming: Placement | None = None
        self.epoch = 0
        self.joined = False
        self.whole = False
        self.reception: Reception | None = None
        self._interrupted: Interrupted | None = None
        self.verification: Verification | None = None
        self._refused_until_s: float | None = None  # a server refused us the topic: do not retry before then
        self._closed = False

    # --- messages

    def frames(self, attachment: Attachment, payloads: list[bytes], now_s: float) -> None:
        if not self.joined:
            return  # published before subscribe returned: these are not owed to anyone
        reception = self.reception
        if reception is None:
            reception = self.reception = Reception(self)
        reception.lines.run(payloads, attachment, now_s, now_s + self.client.wall_offset_s)
        self._hand_over(reception, sum(map(len, payloads)), now_s)
        if reception.lines.unheard:
            reception.lines.unheard = False
            look_again(self, attachment)

    def repair(self, frame: bytes, now_s: float) -> None:
        reception = self.reception
        if reception is not None:
            answered = reception.lines.repair(frame, now_s, now_s + self.client.wall_offset_s)
            if answered is not None:
                reception.repairs.answered(answered)
            self._hand_over(reception, len(frame), now_s)

    def _hand_over(self, reception: Reception, payload_bytes: int, now_s: float) -> None:
        reception.ask_for_holes(now_s)
        if reception.unsettled:
            self.client.attend(self)
        events = reception.take(payload_bytes)
        if not events:
            return
        self.client.active[self] = None
        for mailbox in self.mailboxes:
            mailbox.put(events, payload_bytes, foreign=reception.foreign)
        self.client.wake(self.mailboxes)

    def older_open(self, publisher: int, epoch: int) -> bool:
        return any(attachment.awaits_fence(epoch) for attachment in self.attachments.values())

    # --- records

    def record(self, broker: str, record: Record, now_s: float) -> None:
        """A record, as the broker has it."""
        if self._closed or self._refused_until_s is not None:
            return  # the answer to an outdated question
        if self._learn(self.attachments.get(broker), record, now_s):
            self.progress(now_s)

    def _learn(self, attachment: Attachment | None, record: Record, now_s: float) -> bool:
        """Returns whether the record was news: most are read only to confirm that nothing has changed."""
        news = False
        if attachment is not None and attachment.fenced < record.epoch:
            news = True
            self._fence(attachment, record.epoch)
        if record.epoch > self.epoch:
            news = True
            self._adopt(record, now_s)
        upcoming = record.next
        if upcoming is not None and upcoming.epoch > max(self.epoch, self.upcoming.epoch if self.upcoming else 0):
            news = True
            self.upcoming = upcoming
            for reader in upcoming.readers(self.client.client_id):
                self._attach(reader, upcoming, now_s)
        return news

    def _fence(self, attachment: Attachment, epoch: int) -> None:
        attachment.fence(epoch)
        stale = attachment.stale_readiness(self.topic, epoch)
        if attachment.link is not None:
            attachment.link.unsubscribe(*stale)

    def _adopt(self, record: Record, now_s: float) -> None:
        placement = record.placement
        readers = placement.readers(self.client.client_id)
        if self.joined:
            reason = unready(self, record, readers)
            self.client.tell(moved(f"a subscription to {self.name!r}", placement, reason))
            if reason:
                self.interrupt(reason, self._sound_s(now_s), now_s)
        self.epoch, self.placement = placement.epoch, placement
        if self.upcoming is not None and self.upcoming.epoch <= placement.epoch:
            self.upcoming = None
        for reader in readers:
            self._attach(reader, placement, now_s)
        if record.previous is not None and not self.joined:
            for reader in record.previous.readers(self.client.client_id):
                self._attach(reader, record.previous, now_s)

    def progress(self, now_s: float) -> None:
        self._tidy(now_s)
        say_ready(self)
        if self.reception is not None:
            self.reception.lines.release(now_s, now_s + self.client.wall_offset_s)
            self._hand_over(self.reception, 0, now_s)
        self._check_whole(now_s)

    # --- attachments

    def needed(self) -> Collection[str]:
        """The brokers we must be attached to."""
        client_id = self.client.client_id
        now = self.placement.readers(client_id) if self.placement is not None else ()
        return now if self.upcoming is None else dict.fromkeys((*now, *self.upcoming.readers(client_id)))

    def _attach_needed(self, now_s: float) -> None:
        """Attach where we should be but are not: the broker may have left and come back."""
        for placement in (self.placement, self.upcoming):
            if placement is not None:
                for reader in placement.readers(self.client.client_id):
                    attachment = self.attachments.get(reader)
                    if attachment is None or attachment.link is None:
                        self._attach(reader, placement, now_s)

    def _attach(self, broker: str, placement: Placement, now_s: float) -> None:
        if not self.client.membership.has(broker, placement):
            return  # news about the membership or the topic is on its way
        attachment = self.attachments.get(broker)
        if attachment is None:
            attachment = self.attachments[broker] = Attachment(self, broker)
        attachment.give(placement.epoch)
        if attachment.link is None:
            self.client.links.want(broker, self, now_s)

    def linked(self, link: ClientLink, now_s: float) -> None:
        """A link to a broker is up: attach there if we need to."""
        attachment = self.attachments.get(link.broker)
        if attachment is None or attachment.link is not None:
            return
        attachment.link = link
        link.users[self] = None
        link.topics[self.topic] = attachment
        self.client.hold(link, self.topic, partial(self.denied, attachment, link))
        self._read(attachment, link)

    def _read(self, attachment: Attachment, link: ClientLink) -> None:
        link.read_record(self.topic, self.client.membership, partial(self._opened, attachment, link))

    def _opened(
        self, attachment: Attachment, link: ClientLink, record: Record | Unreadable | Denied | None, now_s: float
    ) -> None:
        if attachment.link is not link:
            return  # detached, or attached again
        if isinstance(record, (Unreadable, Denied)):
            self.refuse(not_found(link.broker, self.topic, record), now_s)
            return
        if record is None and self._forgotten(attachment):
            self.client.attend(self)
            return
        attachment.open = True
        if record is not None:
            attachment.floor = record.epoch
            self._learn(attachment, record, now_s)
        self.progress(now_s)

    def _forgotten(self, attachment: Attachment) -> bool:
        """Whether the broker should have a record but has none, because its server came back with an empty memory.

        Planned topics get theirs back before clients may enter. A topic placed by first use is looked up again at its
        directory.
        """
        if self.outlived(attachment):
            return False
        placement = self.placement
        attachment.unconfirmed = placement is not None and placement.unplaced and placement.epoch in attachment.roles
        return attachment.unconfirmed

    def outlived(self, attachment: Attachment) -> bool:
        """Whether a broker has no record because it no longer carries the topic: it counts as fenced."""
        if not attachment.roles or max(attachment.roles) >= self.epoch:
            return False
        self._fence(attachment, self.epoch)
        return True

    def _confirm(self) -> None:
        for attachment in self.attachments.values():
            if attachment.unconfirmed and attachment.link is not None:
                attachment.unconfirmed = False
                self._read(attachment, attachment.link)

    def unlinked(self, link: ClientLink, now_s: float) -> None:
        """The link to a broker is gone. Its roles stay: the attachment resumes when the link is back."""
        broker = link.broker
        attachment = self.attachments.get(broker)
        if attachment is None or attachment.link is not link:
            return
        attachment.lose()
        self.verification = None
        if not attachment.roles:
            del self.attachments[broker]
        else:
            if self.joined:
                self.interrupt(f"the connection to {broker} was lost", link.sound_s, now_s)
            self.client.links.want(broker, self, now_s)
        self.progress(now_s)
        self.client.attend(self)

    def forget(self, broker: str, now_s: float) -> None:
        """The broker is no longer a member: nothing is expected from it."""
        if self.attachments.pop(broker, None) is not None:
            self.verification = None
            self.progress(now_s)

    def _tidy(self, now_s: float) -> None:
        needed = self.needed()
        for broker, attachment in self.attachments.items():
            if not attachment.roles and broker not in needed and attachment.linger_until_s is None:
                attachment.linger_until_s = now_s + self.client.timing.linger_s
                self.client.attend(self)

    def _detach_lingering(self, now_s: float) -> None:
        for broker, attachment in list(self.attachments.items()):
            if attachment.linger_until_s is not None and now_s >= attachment.linger_until_s:
                self._detach(broker, attachment)

    def _detach(self, broker: str, attachment: Attachment) -> None:
        del self.attachments[broker]
        self.verification = None  # its answer may be lost with a link we no longer use: start over
        link, attachment.link = attachment.link, None
        if link is not None:
            link.topics.pop(self.topic, None)
            channels = [self.topic, *attachment.stale_readiness(self.topic, max(attachment.ready, default=0))]
            self.client.unwatch(link, self.topic, channels)
            link.users.pop(self, None)

    # --- refusals

    def denied(self, attachment: Attachment, link: ClientLink, text: str, now_s: float) -> None:
        """A server refuses us a channel of the topic."""
        if attachment.link is link:
            self.refuse(refused(link.broker, f"a subscription to {self.name!r}", text), now_s)

    def refuse(self, error: ClusterError, now_s: float) -> None:
        """The topic is not available. Waiting callers get the error; attached ones are interrupted until it is back."""
        if not self.joined:
            self.client.end_topic_subscriber(self, error, now_s)
            return
        self.begin_again(str(error), now_s)
        self._refused_until_s = now_s + self.client.timing.reconnect_max_s

    def begin_again(self, reason: str, now_s: float) -> None:
        """Look for the topic as if it were new to us, but keep the lines: what was delivered stays delivered."""
        if self.joined:
            self.interrupt(reason, self._sound_s(now_s), now_s, renewed=True)
        for broker, attachment in list(self.attachments.items()):
            self._detach(broker, attachment)
        self.verification = self.placement = self.upcoming = None
        self.epoch = 0
        self.client.attend(self)

    # --- being whole

    def _check_whole(self, now_s: float) -> None:
        """When everything needed is open, read every record once more. If none has changed, nothing can be missed."""
        if self.whole or self.verification is not None or self.placement is None:
            return
        unproven: list[ClientLink] = []
        for broker in self.needed():
            attachment = self.attachments.get(broker)
            if attachment is None or not attachment.open:
                return
            if attachment.link is not None and not attachment.leased(now_s):
                unproven.append(attachment.link)
        if any(attachment.roles and not attachment.open for attachment in self.attachments.values()):
            return
        for link in unproven:  # a broker that was given up may still answer; being attached there is worth nothing
            link.lease_waiters[self] = None
        if unproven:
            return
        self.verification = Verification(self, [held for held in self.attachments.values() if held.open])
        self.client.attend(self)
        self.verification.start()

    def leased(self, link: ClientLink, now_s: float) -> None:
        """A lease that we waited for is proven."""
        self._check_whole(now_s)

    def verified(self, verification: Verification, now_s: float) -> None:
        """All brokers have been read again."""
        if self.verification is verification:
            self.verification = None
            if verification.unchanged:
                self._become_whole(now_s)
            else:
                self._check_whole(now_s)

    def _become_whole(self, now_s: float) -> None:
        self.whole = self.joined = True
        self.client.joined(self.waiting)
        self.waiting = ()
        if self._interrupted is not None:
            wall_s = now_s + self.client.wall_offset_s
            self._report(Interrupted(self.name, self._interrupted.since_s, wall_s, self._interrupted.reason))
            self._interrupted = None

    def interrupt(self, reason: str, since_s: float, now_s: float, *, renewed: bool = False) -> None:
        """`renewed`: report this reason even if another one was reported before."""
        self.whole = False
        if self.reception is not None:
            self.reception.repairs.ask_all(now_s)
        self.client.attend(self)
        reported, since_s = self._interrupted, since_s + self.client.wall_offset_s
        if reported is None or since_s < reported.since_s or (renewed and reported.reason != reason):
            # Report again if the new interruption reaches further back: another link was silent for longer.
            since_s = since_s if reported is None else min(since_s, reported.since_s)
            self._interrupted = Interrupted(self.name, since_s, None, reason)
            self._report(self._interrupted)

    def _report(self, event: Event) -> None:
        for mailbox in self.mailboxes:
            mailbox.put([event], 0)
        self.client.wake(self.mailboxes)

    def _sound_s(self, now_s: float) -> float:
        links = [attachment.link for attachment in self.attachments.values() if attachment.link is not None]
        return min((link.sound_s for link in links), default=now_s)

    # --- time

    def tick(self, now_s: float) -> bool:
        """Returns whether it needs attention again."""
        if self._refused_until_s is not None and now_s >= self._refused_until_s:
            self._refused_until_s = None
        lost = self.lost(now_s)
        self._detach_lingering(now_s)
        self._confirm()
        reception = self.reception
        if reception is not None:
            reception.repairs.tick(partial(route, self), now_s)
            reception.lines.tick(now_s, now_s + self.client.wall_offset_s)
            self._hand_over(reception, 0, now_s)
        self._check_whole(now_s)
        if not self.whole and self._refused_until_s is None:
            self._attach_needed(now_s)
        if lost:
            self.client.finder.ask(self.topic, now_s)
        lingering = any(held.linger_until_s is not None for held in self.attachments.values())
        return not self.whole or lingering or (reception is not None and reception.unsettled)

    def lost(self, now_s: float) -> bool:
        """Whether we need the directory to say where the topic is. Not while we wait in line where it was."""
        if self._refused_until_s is not None:
            return False
        if self.placement is None:
            return True
        return any(
            not self._in_line(reader, placement, now_s)
            for placement in (self.placement, self.upcoming)
            if placement is not None
            for reader in placement.readers(self.client.client_id)
        )

    def _in_line(self, broker: str, placement: Placement, now_s: float) -> bool:
        """Whether we are attached to a broker, or will be once its answers have arrived."""
        attachment = self.attachments.get(broker)
        if attachment is None or attachment.unconfirmed:
            return False
        client = self.client
        return attachment.open or (client.membership.has(broker, placement) and client.links.serves(broker, now_s))

    @property
    def told_by(self) -> str | None:
        """A broker that its messages come from."""
        return next((name for name, held in self.attachments.items() if held.open and held.roles), None)

    def take_counters(self) -> tuple[str, str, TopicCounters] | None:
        """What was received since the last call, and the broker whose agent should know."""
        broker = self.told_by
        if broker is None:
            return None
        return broker, self.name, self.reception.meter.take() if self.reception is not None else SILENT

    def holds(self, link: ClientLink) -> bool:
        """Whether this topic subscriber needs the control channel on the link."""
        attachment = self.attachments.get(link.broker)
        return attachment is not None and attachment.link is link

    def close(self, now_s: float) -> None:
        """The topic is no longer subscribed: release everything."""
        self._closed = True
        for broker, attachment in list(self.attachments.items()):
            self._detach(broker, attachment)
