"""A pattern flow: what one client receives by a pattern (PROTOCOL, subscriber rule 9).

A pattern subscriber is attached to every broker, so it is always ready and no move waits for it. What is left to do is
to put each topic's messages in order: when a topic speaks in a new epoch at one broker, older messages may still be on
their way from others. The old members were fenced before anybody could speak in the new epoch; so a question that is
put to every other broker *now* is answered behind the last message of the old epoch. Until all have answered, messages
of the new epoch are held. No record and no marker is needed, and nothing is asked while topics stay where they are.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.lines import Lines
from nearcast.core.mailbox import Mailbox
from nearcast.core.message import Event, Interrupted, Message
from nearcast.core.names import CONTROL, PATTERNS, RESERVED, decode_topic
from nearcast.core.wire import Resync, encode_resync, epoch_of

if TYPE_CHECKING:
    from nearcast.core.client import Client
    from nearcast.core.link import Link, Reply


class _Matched:
    """One matching topic. It is its own gate: frames of every epoch may come from every broker."""

    floor = 0

    def __init__(self, flow: PatternFlow, topic: bytes) -> None:
        client = flow.client
        self.topic = topic
        self.lines = Lines(decode_topic(topic), self, client.timing, client.limits)
        self.epoch = -1  # the newest epoch seen
        self.barriers: dict[int, set[Link]] = {}  # epoch -> links that have not answered since it was first seen
        self.last_link: Link | None = None

    def admits(self, epoch: int) -> bool:
        return True

    def older_open(self, epoch: int) -> bool:
        return any(seen <= epoch for seen in self.barriers)

    def passed(self, epoch: int, link: Link) -> None:
        """A link has answered the question of an epoch, or is lost."""
        waiting = self.barriers.get(epoch)
        if waiting is not None:
            waiting.discard(link)
            if not waiting:
                del self.barriers[epoch]


class PatternFlow:
    def __init__(self, client: Client, pattern: bytes) -> None:
        self.client = client
        self.pattern = pattern
        self.name = decode_topic(pattern)
        self.mailboxes: list[Mailbox] = []
        self.waiting: list[object] = []
        self.joined = False
        self._links: dict[str, Link] = {}
        self._open: set[str] = set()  # brokers where the subscription is known to be in force
        self._matched: dict[bytes, _Matched] = {}
        self._interrupted: Interrupted | None = None
        self._resync_at_s: float | None = None

    def add(self, mailbox: Mailbox, token: object) -> None:
        self.mailboxes.append(mailbox)
        if self.joined:
            self.client.joined([token])
        else:
            self.waiting.append(token)

    # --- brokers

    def spread(self, now_s: float) -> None:
        """Attach to every member we are not attached to."""
        for broker in self.client.membership.brokers:
            if broker not in self._links:
                self.client.links.want(broker, self, now_s)

    def linked(self, link: Link, now_s: float) -> None:
        if link.broker in self._links:
            return
        self._links[link.broker] = link
        link.users.add(self)
        link.patterns[self.pattern] = partial(self._message, link)
        link.psubscribe(self.pattern)
        link.subscribe(PATTERNS)
        link.send(partial(self._opened, link), "PING")

    def _opened(self, link: Link, reply: Reply, now_s: float) -> None:
        if self._links.get(link.broker) is link:
            self._open.add(link.broker)
            self._check_whole(now_s)

    def unlinked(self, link: Link, now_s: float) -> None:
        broker = link.broker
        if self._links.get(broker) is not link:
            return
        del self._links[broker]
        self._open.discard(broker)
        if self.joined:
            self._interrupt(f"the connection to {broker} was lost", link.heard_s, now_s)
        for matched in self._matched.values():
            for epoch in list(matched.barriers):
                self._passed(matched, epoch, link, None, now_s)
        if broker in self.client.membership.brokers:
            self.client.links.want(broker, self, now_s)

    def forget(self, broker: str, now_s: float) -> None:
        """The broker is no member any more, and its link is gone already."""
        self._check_whole(now_s)

    def holds(self, link: Link) -> bool:
        return self._links.get(link.broker) is link

    def close(self) -> None:
        for link in self._links.values():
            link.patterns.pop(self.pattern, None)
            link.punsubscribe(self.pattern)
            if not any(other is not self and other.holds(link) for other in self.client.patterns.values()):
                link.unsubscribe(PATTERNS)
            link.users.discard(self)

    # --- messages

    def _message(self, link: Link, topic: bytes, payload: bytes, now_s: float) -> None:
        if not self.joined or topic.startswith(RESERVED):
            return
        matched = self._matched.get(topic) or self._match(topic)
        matched.last_link = link
        epoch = epoch_of(payload)
        if epoch > matched.epoch:
            matched.epoch = epoch
            self._ask_others(matched, epoch, link)
        matched.lines.run([payload], matched, now_s, now_s + self.client.wall_offset_s)
        self._hand_over(matched)

    def _match(self, topic: bytes) -> _Matched:
        if len(self._matched) >= self.client.limits.topics:
            del self._matched[next(iter(self._matched))]  # the oldest: its next message is a new baseline
        matched = self._matched[topic] = _Matched(self, topic)
        return matched

    def _ask_others(self, matched: _Matched, epoch: int, speaker: Link) -> None:
        others = {link for link in self._links.values() if link is not speaker}
        if others:
            matched.barriers[epoch] = others
            for link in others:
                link.send(partial(self._passed, matched, epoch, link), "PING")

    def _passed(self, matched: _Matched, epoch: int, link: Link, reply: Reply, now_s: float) -> None:
        matched.passed(epoch, link)
        matched.lines.release(now_s, now_s + self.client.wall_offset_s)
        self._hand_over(matched)

    def repair(self, topic: bytes, frame: bytes, now_s: float) -> None:
        matched = self._matched.get(topic)
        if matched is not None:
            matched.lines.repair(frame, now_s, now_s + self.client.wall_offset_s)
            self._hand_over(matched)

    def _hand_over(self, matched: _Matched) -> None:
        lines = matched.lines
        if lines.wants_repair:
            lines.wants_repair = False
            self._resync(matched)
        if lines.unsettled:
            self.client.attend(self)
        if lines.out:
            events, lines.out = [self._named(event) for event in lines.out], []
            size = sum(len(event.payload) for event in events if isinstance(event, Message))
            for mailbox in self.mailboxes:
                mailbox.put(events, size)
            self.client.wake(self.mailboxes)

    def _named(self, event: Event) -> Event:
        return msgspec.structs.replace(event, pattern=self.name) if isinstance(event, Message) else event

    # --- being whole, repair, time

    def _check_whole(self, now_s: float) -> None:
        if not self._open >= self.client.membership.brokers.keys():
            return
        self.joined = True
        self.client.joined(self.waiting)
        self.waiting = []
        if self._interrupted is not None:
            ended = msgspec.structs.replace(self._interrupted, until_s=now_s + self.client.wall_offset_s)
            self._interrupted = None
            self._report(ended)

    def _interrupt(self, reason: str, since_s: float, now_s: float) -> None:
        self._resync_at_s = now_s + self.client.rng.random() * self.client.timing.resync_s
        self.client.attend(self)
        since_s += self.client.wall_offset_s
        if self._interrupted is None or since_s < self._interrupted.since_s:
            self._interrupted = Interrupted(self.name, since_s, None, reason)
            self._report(self._interrupted)

    def _report(self, event: Interrupted) -> None:
        for mailbox in self.mailboxes:
            mailbox.put([event], 0)
        self.client.wake(self.mailboxes)

    def _resync(self, matched: _Matched) -> None:
        link = matched.last_link
        if link is not None and self.holds(link) and matched.lines.last:
            wish = Resync(self.client.client_id, dict(matched.lines.last))
            link.tell(CONTROL + matched.topic, encode_resync(wish))

    @property
    def unsettled(self) -> bool:
        """Whether it is interrupted, or frames are held or holes are open."""
        return self._interrupted is not None or any(matched.lines.unsettled for matched in self._matched.values())

    def tick(self, now_s: float) -> bool:
        """Returns whether it needs attention again."""
        for matched in self._matched.values():
            if matched.lines.unsettled:
                matched.lines.tick(now_s, now_s + self.client.wall_offset_s)
                self._hand_over(matched)
        if self._resync_at_s is not None and now_s >= self._resync_at_s and self._interrupted is None:
            self._resync_at_s = None
            for matched in self._matched.values():
                self._resync(matched)
        return self.unsettled or not self.joined or self._resync_at_s is not None
