"""Pattern flows: what one client receives by patterns (PROTOCOL, subscriber rule 9)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.client.mailbox import Mailbox
from nearcast.core.client.news import Kind, Note, refused
from nearcast.core.client.ordering import PublisherOrder
from nearcast.core.client.repairs import Repairs
from nearcast.core.model.message import Event, Interrupted, Message
from nearcast.core.model.names import PATTERNS, RESERVED, decode_topic, pattern_readiness
from nearcast.core.wire.frames import speaker_of

if TYPE_CHECKING:
    from nearcast.core.client.machine import Client
    from nearcast.core.wire.backend import ClientLink


class _Matched:
    """One matching topic. It is its own gate: frames of every epoch may come from every broker."""

    floor = newest = 0

    def __init__(self, flow: PatternFlow, topic: bytes) -> None:
        client = flow.client
        self.topic = topic
        self.lines = PublisherOrder(decode_topic(topic), self, client.timing, client.limits)
        self.repairs = Repairs(client, topic, self.lines)
        self.heard_at: dict[int, str] = {}  # publisher -> the broker where it began its current epoch
        self.waiting: set[ClientLink] = set()  # links that have not answered the current question
        self.asked = self.answered = 0  # numbers of questions
        self._epochs: dict[int, int] = {}  # publisher -> the newest epoch it has sent in
        self._needs: dict[int, int] = {}  # publisher -> the question that must be answered first

    def admits(self, epoch: int) -> bool:
        return True

    def older_open(self, publisher: int, epoch: int) -> bool:
        return self._needs.get(publisher, 0) > self.answered

    def spoke(self, publisher: int, epoch: int) -> bool:
        """A publisher has sent something. Returns whether that calls for a question to the other brokers."""
        if epoch <= self._epochs.get(publisher, -1):
            return False
        self._epochs[publisher] = epoch
        self._needs[publisher] = self.asked + 1
        return True

    def forget(self, publishers: list[int]) -> None:
        for publisher in publishers:
            for known in (self.heard_at, self._epochs, self._needs):
                known.pop(publisher, None)

    @property
    def needs_question(self) -> bool:
        return not self.waiting and any(need > self.asked for need in self._needs.values())

    def ask(self, links: set[ClientLink]) -> None:
        self.asked += 1
        self.waiting = set(links)
        if not links:
            self.answered = self.asked

    def passed(self, question: int, link: ClientLink) -> None:
        """A link has answered a question, or is lost."""
        if question == self.asked and link in self.waiting:
            self.waiting.discard(link)
            if not self.waiting:
                self.answered = question


class PatternFlow:
    """What one client receives by one pattern.

    A pattern subscriber is attached to every broker, so it is always ready and no move waits for it. What remains is to
    put each publisher's messages in order: when a publisher sends in a new epoch, its older messages may still be in
    flight from other brokers. It had seen the fence of its old broker before it sent anything in the new epoch. So a
    question sent to every other broker *now* is answered after the last message that was acknowledged there. Until all
    have answered, the publisher's messages that are not next in line are held. This needs no record and no marker, and
    nothing is asked while topics stay where they are. One question serves all publishers of a topic that need one; the
    next is sent when it is answered.

    A broker that is drained is marked in the membership once it carries no topics. A last question to it is answered
    after everything it ever sent. Then the subscriber lets go of the broker, and nothing is interrupted.
    """

    def __init__(self, client: Client, pattern: bytes) -> None:
        self.client = client
        self.pattern = pattern
        self.name = decode_topic(pattern)
        self.mailboxes: list[Mailbox] = []
        self.waiting: tuple[object, ...] = ()
        self.joined = False
        self._links: dict[str, ClientLink] = {}
        self._open: set[str] = set()  # brokers where the subscription is known to be in force
        self._missing_s: dict[str, float] = {}  # brokers where it is not, and since when they may carry topics
        self._matched: dict[bytes, _Matched] = {}
        self._interrupted: Interrupted | None = None
        self._retry_at_s: float | None = None  # a broker has refused us: do not retry before then
        self._closed = False

    def add(self, mailbox: Mailbox, token: object) -> None:
        self.mailboxes.append(mailbox)
        if self.joined:
            self.client.joined([token])
        else:
            self.waiting += (token,)

    # --- brokers

    def missing(self) -> list[str]:
        """The brokers we are not attached to yet."""
        return [broker for broker in self._carriers() if broker not in self._open]

    def spread(self, now_s: float) -> None:
        """Attach to every member we are not attached to, and part from those that leave."""
        # News about a member that is read late is old: it may have carried topics since the links were last known to be
        # sound.
        sound_s = min((link.sound_s for link in self._links.values()), default=now_s)
        for broker, info in self.client.membership.brokers.items():
            link = self._links.get(broker)
            if link is None and not info.leaving:
                self._missing_s.setdefault(broker, sound_s)
                self.client.links.want(broker, self, now_s)
            elif link is not None and info.leaving:
                link.barrier(partial(self._part, link))
        self._check_missed(now_s)
        self._check_whole(now_s)

    def linked(self, link: ClientLink, now_s: float) -> None:
        if self._closed or link.broker in self._links or link.broker not in self._carriers():
            return
        self._links[link.broker] = link
        link.users[self] = None
        link.patterns[self.pattern] = partial(self._message, link)
        link.psubscribe(self.pattern, refused=partial(self._denied, link))
        link.subscribe(PATTERNS, refused=partial(self._denied, link))
        # A joining broker is announced before pattern subscribers are counted: those not counted read about it here.
        self.client.links.look_at_members(link, partial(self._opened, link))

    def _denied(self, link: ClientLink, text: str, now_s: float) -> None:
        """A broker refuses us the pattern: waiting callers get the error, attached ones an interruption; we retry."""
        if not self.holds(link):
            return
        error = refused(link.broker, f"a subscription to the pattern {self.name!r}", text)
        self.client.tell(Note(Kind.REFUSED, str(error)))
        if not self.joined:
            self.client.end_pattern(self, error)
            return
        self._leave(link, now_s)
        self._interrupt(str(error), link.sound_s, now_s)
        if self._interrupted is not None and self._interrupted.reason != str(error):
            self._interrupted = msgspec.structs.replace(self._interrupted, reason=str(error))
            self._report(self._interrupted)
        self._retry_at_s = now_s + self.client.timing.reconnect_max_s

    def _opened(self, link: ClientLink, now_s: float) -> None:
        if self._links.get(link.broker) is link:
            self._open.add(link.broker)
            self._missing_s.pop(link.broker, None)
            self._check_whole(now_s)
            self.client.arrivals.look()

    def unlinked(self, link: ClientLink, now_s: float) -> None:
        broker = link.broker
        if self._links.get(broker) is not link:
            return
        del self._links[broker]
        self._open.discard(broker)
        if self.joined:
            self._interrupt(f"the connection to {broker} was lost", link.sound_s, now_s)
        for matched in self._matched.values():
            self._passed(matched, matched.asked, link, now_s)
        self.client.arrivals.look()
        if broker in self._carriers():
            self.client.links.want(broker, self, now_s)
        else:
            self._check_whole(now_s)

    def forget(self, broker: str, now_s: float) -> None:
        """The broker is no longer a member, and its link is already gone."""
        self._missing_s.pop(broker, None)
        self._check_whole(now_s)

    def _carriers(self) -> list[str]:
        """The members that may carry topics."""
        return [broker for broker, info in self.client.membership.brokers.items() if not info.leaving]

    def _part(self, link: ClientLink, now_s: float) -> None:
        """The link has delivered everything its broker ever sent."""
        if self.holds(link):
            self._leave(link, now_s)

    def _leave(self, link: ClientLink, now_s: float) -> None:
        del self._links[link.broker]
        self._open.discard(link.broker)
        self._let_go(link)
        for matched in self._matched.values():
            self._passed(matched, matched.asked, link, now_s)

    def holds(self, link: ClientLink) -> bool:
        return self._links.get(link.broker) is link

    def attached(self, broker: str) -> bool:
        return broker in self._open

    def open_links(self) -> list[ClientLink]:
        return [link for broker, link in self._links.items() if broker in self._open]

    def close(self) -> None:
        """The pattern is no longer wanted: release it everywhere, and drop links still being opened."""
        self._closed = True
        links, self._links = self._links, {}
        for link in links.values():
            self._let_go(link)

    def _let_go(self, link: ClientLink) -> None:
        link.patterns.pop(self.pattern, None)
        link.punsubscribe(self.pattern)
        if not any(other is not self and other.holds(link) for other in self.client.patterns.values()):
            self.client.arrivals.part(link)
        link.users.pop(self, None)

    # --- messages

    def _message(self, link: ClientLink, topic: bytes, payload: bytes, now_s: float) -> None:
        if not self.joined or topic.startswith(RESERVED):
            return
        matched = self._matched.get(topic) or self._match(topic)
        publisher, epoch = speaker_of(payload)
        if publisher is not None and matched.spoke(publisher, epoch):
            matched.heard_at[publisher] = link.broker
            self._ask_others(matched, link)
        matched.lines.run([payload], matched, now_s, now_s + self.client.wall_offset_s)
        self._hand_over(matched, now_s)

    def _match(self, topic: bytes) -> _Matched:
        if len(self._matched) >= self.client.limits.topics:
            del self._matched[next(iter(self._matched))]  # the oldest: its next message is a new baseline
        matched = self._matched[topic] = _Matched(self, topic)
        return matched

    def topics(self) -> list[bytes]:
        """The topics that have matched and are not forgotten."""
        return list(self._matched)

    def forget_silent(self, topic: bytes) -> None:
        """Forget publishers of a topic that were silent since the last call, and the topic if none is left."""
        matched = self._matched.get(topic)
        if matched is not None:
            matched.forget(matched.lines.forget_silent(matched.repairs.asked))
            if not matched.lines.last and not matched.lines.unsettled and not matched.waiting:
                del self._matched[topic]

    def _ask_others(self, matched: _Matched, speaker: ClientLink | None) -> None:
        if not matched.needs_question:
            return
        others = {link for link in self._links.values() if link is not speaker}
        matched.ask(others)
        for link in others:
            link.barrier(partial(self._passed, matched, matched.asked, link))

    def _passed(self, matched: _Matched, question: int, link: ClientLink, now_s: float) -> None:
        matched.passed(question, link)
        self._ask_others(matched, None)
        matched.lines.release(now_s, now_s + self.client.wall_offset_s)
        self._hand_over(matched, now_s)

    def repair(self, topic: bytes, frame: bytes, now_s: float) -> None:
        matched = self._matched.get(topic)
        if matched is not None:
            answered = matched.lines.repair(frame, now_s, now_s + self.client.wall_offset_s)
            if answered is not None:
                matched.repairs.answered(answered)
            self._hand_over(matched, now_s)

    def _hand_over(self, matched: _Matched, now_s: float) -> None:
        lines = matched.lines
        if lines.wanted:
            wanted, lines.wanted = lines.wanted, {}
            matched.repairs.ask(wanted, now_s)
            self.client.attend(self)
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
        carriers = self._carriers()
        if not carriers or not self._open.issuperset(carriers):
            return
        self.joined = True
        self.client.joined(self.waiting)
        self.waiting = ()
        if self._interrupted is not None:
            ended = msgspec.structs.replace(self._interrupted, until_s=now_s + self.client.wall_offset_s)
            self._interrupted = None
            self._report(ended)

    def _check_missed(self, now_s: float) -> None:
        """Report an interruption where attaching took so long that the broker may have carried topics before."""
        for broker in self.client.membership.ring if self.joined else ():
            since_s = self._missing_s.get(broker)
            if since_s is not None and broker not in self._open:
                self._interrupt(f"{broker} carried topics before this subscription was attached to it", since_s, now_s)

    def _interrupt(self, reason: str, since_s: float, now_s: float) -> None:
        for matched in self._matched.values():
            matched.repairs.ask_all(now_s)
        self.client.attend(self)
        since_s += self.client.wall_offset_s
        if self._interrupted is None or since_s < self._interrupted.since_s:
            self._interrupted = Interrupted(self.name, since_s, None, reason)
            self._report(self._interrupted)

    def _report(self, event: Interrupted) -> None:
        for mailbox in self.mailboxes:
            mailbox.put([event], 0)
        self.client.wake(self.mailboxes)

    def _route(self, matched: _Matched, publisher: int) -> list[ClientLink]:
        """Where a publisher can be asked: where we heard it last, else everywhere, because only it reads its inbox."""
        if self._interrupted is not None:
            return []
        link = self._links.get(matched.heard_at.get(publisher, ""))
        return [link] if link is not None else list(self._links.values())

    @property
    def unsettled(self) -> bool:
        """Whether it is interrupted, frames are held, or holes are open."""
        return self._interrupted is not None or any(matched.lines.unsettled for matched in self._matched.values())

    def tick(self, now_s: float) -> bool:
        """Returns whether it needs attention again."""
        for matched in self._matched.values():
            if matched.lines.unsettled:
                matched.lines.tick(now_s, now_s + self.client.wall_offset_s)
                self._hand_over(matched, now_s)
            if matched.repairs.pending:
                matched.repairs.tick(partial(self._route, matched), now_s)
        if self._retry_at_s is not None and now_s >= self._retry_at_s:
            self._retry_at_s = None
            self.spread(now_s)
        asking = any(matched.repairs.pending for matched in self._matched.values())
        return self.unsettled or not self.joined or asking


# --- arrivals


class Arrivals:
    """Announces that this client's pattern subscriptions are attached to a joining broker.

    A joining broker carries no topic before every pattern subscriber is attached to it. Clients announce this as the
    subscribers of a topic do before a move: a client attached to the new broker holds one more channel on every server
    it uses, named after the join. So at each server, and at one moment, the holders can be counted against all pattern
    subscribers. Counts of different servers or different joins are never compared, because equal counts do not mean the
    same clients.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._announced: dict[ClientLink, set[int]] = {}  # joins whose channel we hold, by link

    def look(self) -> None:
        """Announce the current state. Called when a pattern subscription or the membership has changed."""
        flows = self._client.patterns.values()
        links = dict.fromkeys(link for flow in flows for link in flow.open_links())
        joins = self._joins() if links else set()
        for link in links:
            announced = self._announced.setdefault(link, set())
            for joined in sorted(joins - announced):
                link.subscribe(pattern_readiness(joined))
            for joined in sorted(announced - joins):
                link.unsubscribe(pattern_readiness(joined))
            self._announced[link] = set(joins)
        for link in [link for link in self._announced if link not in links]:
            del self._announced[link]

    def _joins(self) -> set[int]:
        """The joins in progress that all our pattern subscriptions are ready for."""
        membership, flows = self._client.membership, self._client.patterns.values()
        return {
            info.joined
            for broker, info in membership.brokers.items()
            if broker not in membership.ring and not info.leaving and all(flow.attached(broker) for flow in flows)
        }

    def part(self, link: ClientLink) -> None:
        """None of our pattern subscriptions uses the link any more: release everything at one moment."""
        announced = self._announced.pop(link, set())
        link.unsubscribe(PATTERNS, *(pattern_readiness(joined) for joined in sorted(announced)))
