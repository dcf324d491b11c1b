"""The client machine: one program's publications and subscriptions over all brokers it uses.

It owns the links, the view of the membership, and one topic publisher and one topic subscriber per topic. It reads no
clock and does no I/O: the driver calls the inputs with the time, then writes `outgoing()`, carries out `effects`,
answers the callers in `acks`, and wakes the consumers in `woken`.

    inputs    connected, received, lost, publish, subscribe, unsubscribe, psubscribe, punsubscribe, tick, close, and
              those of `readers`
    outputs   outgoing(), effects, acks, woken, readers.woken, refusals, ended; `tell` is called with news
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from random import Random
from typing import Protocol

from nearcast.core.client.finder import Finder, Leaving, Recheck
from nearcast.core.client.links import Links
from nearcast.core.client.mailbox import Mailbox
from nearcast.core.client.news import Kind, Note, Refusals, State, StateChange, Tell, not_found, refused, silent
from nearcast.core.client.patterns import Arrivals, PatternFlow
from nearcast.core.client.presence import Presence
from nearcast.core.client.publisher import TopicPublisher
from nearcast.core.client.readers import Readers
from nearcast.core.client.repairs import ASKS_BURST, ASKS_PER_S, Answers
from nearcast.core.client.side_links import SideLinks
from nearcast.core.client.subscriber import TopicSubscriber
from nearcast.core.client.upkeep import Forgetting, Reporting
from nearcast.core.model.distances import Sought
from nearcast.core.model.membership import Membership
from nearcast.core.model.names import CONTROL, decode_topic, encode_topic
from nearcast.core.model.placement import Record, Unreadable
from nearcast.core.model.settings import DEFAULT_LIMITS, DEFAULT_TIMING, Limits, RateLimit, Timing
from nearcast.core.wire.backend import ClientLink, Credentials, Denied, OnRefused
from nearcast.core.wire.effects import Done, Effect, Failed
from nearcast.core.wire.frames import ASK, HEADER, decode_control, decode_repair
from nearcast.errors import Closed, ClusterError, LimitReached, NearcastError

_NOT_ATTACHED = "the subscription was closed before it was attached"


class Ticking(Protocol):
    """Something with a timer of its own. It stays in the attention set for as long as its `tick` returns true."""

    def tick(self, now_s: float) -> bool: ...


class Client:
    """The machine; the module's docstring lists its inputs and outputs."""

    def __init__(
        self,
        client_id: int,
        rng: Random,
        *,
        credentials: Credentials | None = None,
        timing: Timing = DEFAULT_TIMING,
        limits: Limits = DEFAULT_LIMITS,
        tell: Tell = silent,
    ) -> None:
        self.client_id = client_id
        self.rng = rng
        self._own_timing = timing
        self.timing = timing  # our own until the membership says what everyone uses
        self.limits = limits
        self.tell = tell
        self.state = StateChange(State.DISCONNECTED)
        self.membership = Membership(version=-1, term=0, brokers={})
        self.wall_offset_s = 0.0  # add to the driver's clock to get Unix time
        self.effects: list[Effect] = []
        self.acks: list[tuple[object, int]] = []
        self.woken: set[Mailbox] = set()
        self.refusals = Refusals()
        self.answers = Answers(self)
        self.asking = RateLimit(ASKS_PER_S, ASKS_BURST)
        self.links = Links(self, credentials or Credentials())
        self.side_links = SideLinks(self, credentials or Credentials())
        self.topic_publishers: dict[bytes, TopicPublisher] = {}
        self.topic_subscribers: dict[bytes, TopicSubscriber] = {}
        self.patterns: dict[bytes, PatternFlow] = {}
        self.arrivals = Arrivals(self)
        self.readers = Readers(self)
        self.leaving: Leaving | None = None
        self.closed = False
        self.numbered = 0  # no ended topic had a higher number
        self.ended: list[bytes] = []  # topics no longer published, for the driver
        self.finder = Finder(self)
        self._recheck = Recheck(self)
        self._forgetting = Forgetting(self)
        self._reporting = Reporting(self)
        self.presence = Presence(self)
        self._attention: OrderedDict[Ticking, None] = OrderedDict()
        self.in_flight: dict[TopicPublisher, None] = {}  # those with unacknowledged messages
        self.unsent: dict[TopicPublisher, None] = {}  # those with messages not yet given to a link
        self.full: dict[
            TopicPublisher, None
        ] = {}  # those that had no room for another message, and may have room by now
        self.active: dict[TopicPublisher | TopicSubscriber, None] = {}  # those with traffic since the last report

    # --- inputs: what the program asks

    def publish(self, topic: bytes, payload: bytes, time_ns: int, token: object, now_s: float) -> None:
        """Send a message; `token` comes back in `acks`. Raises PublishBufferFull, and then nothing was sent."""
        self.topic_publisher(topic, now_s).publish(payload, time_ns, token)

    def topic_publisher(self, topic: bytes, now_s: float) -> TopicPublisher:
        """What this client publishes on a topic, for callers that publish often."""
        topic_publisher = self.topic_publishers.get(topic)
        if topic_publisher is None:
            encode_topic(topic)
            if self._full:
                self._forgetting.make_room()
            self._check_open(topic)
            topic_publisher = self.topic_publishers[topic] = TopicPublisher(self, topic)
            self.attend(topic_publisher)
            self.finder.ask(topic, now_s)
        return topic_publisher

    def subscribe(self, topic: bytes, mailbox: Mailbox, token: object, now_s: float) -> None:
        """Put the topic's messages into the mailbox; `Done(token)` when nothing published from then on is missed."""
        topic_subscriber = self.topic_subscribers.get(topic)
        if topic_subscriber is None:
            self._check_open(topic)
            topic_subscriber = self.topic_subscribers[topic] = TopicSubscriber(self, topic)
            self.attend(topic_subscriber)
            self.finder.ask(topic, now_s)
        topic_subscriber.mailboxes += (mailbox,)
        if topic_subscriber.joined:
            self.effects.append(Done(token))
        else:
            topic_subscriber.waiting += (token,)

    def unsubscribe(self, topic: bytes, mailbox: Mailbox, now_s: float) -> None:
        topic_subscriber = self.topic_subscribers.get(topic)
        if topic_subscriber is None or mailbox not in topic_subscriber.mailboxes:
            return
        topic_subscriber.mailboxes = tuple(other for other in topic_subscriber.mailboxes if other is not mailbox)
        if not topic_subscriber.mailboxes:
            self.end_topic_subscriber(topic_subscriber, Closed(_NOT_ATTACHED), now_s)

    def psubscribe(self, pattern: bytes, mailbox: Mailbox, token: object, now_s: float) -> None:
        """Put messages of all topics that match into the mailbox; `Done(token)` as for subscribe."""
        flow = self.patterns.get(pattern)
        if flow is None:
            self._check_open(pattern)
            flow = self.patterns[pattern] = PatternFlow(self, pattern)
            self.attend(flow)
            flow.spread(now_s)
        flow.add(mailbox, token)

    def punsubscribe(self, pattern: bytes, mailbox: Mailbox, now_s: float) -> None:
        flow = self.patterns.get(pattern)
        if flow is None or mailbox not in flow.mailboxes:
            return
        flow.mailboxes.remove(mailbox)
        if not flow.mailboxes:
            self.end_pattern(flow, Closed(_NOT_ATTACHED))

    def give_up(self, topic: bytes, sequence: int) -> bool:
        """The caller of publish stops waiting. Returns whether the message was withdrawn before it was ever sent."""
        topic_publisher = self.topic_publishers.get(topic)
        return topic_publisher is not None and topic_publisher.give_up(sequence)

    def close(self, now_s: float) -> None:
        self.closed = True
        self._become(StateChange(State.CLOSED))
        for topic_publisher in self.topic_publishers.values():
            for token in topic_publisher.take_tokens():
                self.effects.append(Failed(token, Closed("the client was closed before the message was acknowledged")))
        self.readers.close_all()
        for flow in self._subscribers():
            for token in flow.waiting:
                self.effects.append(Failed(token, Closed("the client was closed before the subscription was attached")))

    def end_topic_subscriber(self, topic_subscriber: TopicSubscriber, error: NearcastError, now_s: float) -> None:
        """The topic is no longer wanted, or was refused: callers waiting to be attached get the error."""
        del self.topic_subscribers[topic_subscriber.topic]
        if topic_subscriber.topic not in self.topic_publishers:
            self.finder.forget(topic_subscriber.topic)
        self._abandon(topic_subscriber, error)
        topic_subscriber.close(now_s)

    def end_topic_publisher(self, topic_publisher: TopicPublisher) -> None:
        """The topic is no longer published. If it is published again, its numbers continue after these."""
        del self.topic_publishers[topic_publisher.topic]
        self.numbered = max(self.numbered, topic_publisher.sequence)
        self.ended.append(topic_publisher.topic)
        if topic_publisher.topic not in self.topic_subscribers:
            self.finder.forget(topic_publisher.topic)
        self._attention.pop(topic_publisher, None)
        self.active.pop(topic_publisher, None)
        self.full.pop(topic_publisher, None)
        self.links.unwant(topic_publisher)
        topic_publisher.end()

    def end_pattern(self, flow: PatternFlow, error: NearcastError) -> None:
        del self.patterns[flow.pattern]
        self._abandon(flow, error)
        flow.close()
        self.arrivals.look()

    def _abandon(self, flow: TopicSubscriber | PatternFlow, error: NearcastError) -> None:
        self._attention.pop(flow, None)
        self.links.unwant(flow)
        self.effects.extend(Failed(token, error) for token in flow.waiting)
        flow.waiting = ()

    def _subscribers(self) -> list[TopicSubscriber | PatternFlow]:
        return [*self.topic_subscribers.values(), *self.patterns.values()]

    @property
    def _full(self) -> bool:
        return len(self.topic_publishers) + len(self.topic_subscribers) + len(self.patterns) >= self.limits.topics

    def _check_open(self, topic: bytes) -> None:
        if self.closed:
            raise Closed("this client is closed: connect a new one")
        if self._full:
            raise LimitReached(f"this client uses {self.limits.topics} topics: raise Limits.topics or use more clients")

    # --- inputs: what the driver reports

    def connected(self, name: str, now_s: float) -> None:
        (self.side_links if name in self.side_links else self.links).connected(name, now_s)

    def received(self, name: str, data: bytes, now_s: float) -> None:
        (self.side_links if name in self.side_links else self.links).received(name, data, now_s)

    def lost(self, name: str, reason: str, now_s: float) -> None:
        (self.side_links if name in self.side_links else self.links).lost(name, reason, now_s)
        self._look_at_state(now_s)

    def tick(self, now_s: float) -> None:
        self.links.tick(now_s)
        self.side_links.tick(now_s)
        self._leave_on(now_s)
        for _ in range(self.attended):
            ticking, _ = self._attention.popitem(last=False)
            if ticking.tick(now_s):
                self.attend(ticking)
        self._recheck.tick(now_s)
        self._look_around(now_s)
        self._look_at_state(now_s)
        self._forgetting.tick(now_s)
        self._reporting.tick(now_s)

    def send(self) -> None:
        """Hand what was published to the links, one batch per topic."""
        unsent, self.unsent = self.unsent, {}
        for topic_publisher in unsent:
            topic_publisher.send()

    # --- services for flows and links

    @property
    def attended(self) -> int:
        """How many flows the next tick handles: those that have waited longest."""
        return min(len(self._attention), self.limits.attended)

    def attend(self, ticking: Ticking) -> None:
        self._attention[ticking] = None

    def wake(self, mailboxes: Iterable[Mailbox]) -> None:
        self.woken.update(mailboxes)

    def joined(self, tokens: Iterable[object]) -> None:
        self.effects.extend(Done(token) for token in tokens)

    def watch(self, link: ClientLink, topic: bytes) -> None:
        """Hold the topic's control channel on a link."""
        link.watched.add(CONTROL + topic)
        link.subscribe(CONTROL + topic, refused=partial(self._unwatched, link, topic))

    def hold(self, link: ClientLink, topic: bytes, refused: OnRefused) -> None:
        """Hold the topic on a link, and its control channel before it: one command, so it is all or nothing."""
        channel = CONTROL + topic
        if channel in link.watched:
            link.subscribe(topic, refused=refused)
        else:
            link.watched.add(channel)
            link.subscribe(channel, topic, refused=refused)

    def _unwatched(self, link: ClientLink, topic: bytes, text: str, now_s: float) -> None:
        """We may not have the topic's control channel, so we may not have the topic either."""
        if CONTROL + topic in link.watched:
            link.watched.discard(CONTROL + topic)
            self._refuse(topic, refused(link.broker, f"the control channel of {decode_topic(topic)!r}", text), now_s)

    def unwatch(self, link: ClientLink, topic: bytes, channels: list[bytes]) -> None:
        """Release channels of a topic, and its control channel if nothing here needs it: one command, at one moment."""
        topic_publisher, topic_subscriber = self.topic_publishers.get(topic), self.topic_subscribers.get(topic)
        needed = (topic_publisher is not None and topic_publisher.holds(link)) or (
            topic_subscriber is not None and topic_subscriber.holds(link)
        )
        if not needed and CONTROL + topic in link.watched:
            link.watched.discard(CONTROL + topic)
            channels = [*channels, CONTROL + topic]
        link.unsubscribe(*channels)

    def link_up(self, link: ClientLink, now_s: float) -> None:
        """Questions that waited for a link are asked immediately."""
        self.finder.go_on(link, now_s)
        self._look_at_state(now_s)

    def link_lost(self, link: ClientLink, now_s: float) -> None:
        self.side_links.first_lost(link)
        self.finder.link_lost(link, now_s)
        self.readers.announcements.link_lost(link)

    def leased(self, link: ClientLink, now_s: float) -> None:
        waiters, link.lease_waiters = link.lease_waiters, {}
        for flow in waiters:
            flow.leased(link, now_s)

    def inbox(self, link: ClientLink, payload: bytes, now_s: float) -> None:
        """A frame on our inbox: a repair of what we missed, or a request from a subscriber that missed something."""
        parts = decode_repair(payload)
        if parts is None:
            return
        topic, frame = parts
        word, _, asker, have, _ = HEADER.unpack_from(frame)
        if word == ASK:
            topic_publisher = self.topic_publishers.get(topic)
            if topic_publisher is not None:
                self.answers.ask(topic_publisher, link, asker, have, now_s)
            return
        topic_subscriber = self.topic_subscribers.get(topic)
        if topic_subscriber is not None:
            topic_subscriber.repair(frame, now_s)
        for pattern in self.patterns.values():
            pattern.repair(topic, frame, now_s)

    def update_membership(self, membership: Membership, now_s: float) -> None:
        if self.leaving is not None:
            self.leaving.hear(membership)
            return
        if self.membership.cluster not in ("", membership.cluster):
            if not self.is_served(now_s):  # otherwise we have nothing to do with that cluster
                self.leaving = Leaving(self, membership, now_s)
            return
        if membership.version <= self.membership.version:
            return
        brokers = self.membership.brokers
        gone = [name for name, info in brokers.items() if not info.same(membership.brokers.get(name))]
        if 0 <= self.membership.era < membership.era:
            self._recheck.begin()
        logs_changed = membership.logs_version != self.membership.logs_version
        self.membership = membership
        self.timing = self._own_timing.within(membership.timers) if membership.timers else self._own_timing
        for broker in gone:
            self.links.forget(broker, now_s)
            for flow in self._subscribers():
                flow.forget(broker, now_s)
        if logs_changed:
            for topic_publisher in list(self.in_flight):
                topic_publisher.cover()
        for pattern in self.patterns.values():
            pattern.spread(now_s)
        self.readers.membership_changed(now_s)
        self.arrivals.look()
        self.finder.membership_changed(now_s)

    def _leave_on(self, now_s: float) -> None:
        """If this client is leaving a cluster, continue, and join the next one when done."""
        leaving = self.leaving
        if leaving is not None and leaving.go_on(now_s):
            self.leaving = None
            self.update_membership(leaving.successor, now_s)

    # --- records

    def heard(self, link: ClientLink, channel: bytes, payload: bytes, now_s: float) -> None:
        """A message of a topic's control channel."""
        topic, news = channel.removeprefix(CONTROL), decode_control(payload)
        if isinstance(news, Record):
            self._record(link.broker, topic, news, now_s)
        elif isinstance(news, Sought):
            self.presence.seek(news.brokers, now_s)
        elif isinstance(news, Unreadable):
            self._refuse(topic, not_found(link.broker, topic, news), now_s)

    def _record(self, broker: str, topic: bytes, record: Record, now_s: float) -> None:
        topic_publisher = self.topic_publishers.get(topic)
        if topic_publisher is not None:
            topic_publisher.record(record, now_s)
        topic_subscriber = self.topic_subscribers.get(topic)
        if topic_subscriber is not None:
            topic_subscriber.record(broker, record, now_s)

    def looks_for(self, topic: bytes, now_s: float) -> bool:
        """Whether something here still needs a directory to say where the topic is."""
        if topic in self._recheck:
            return True
        topic_subscriber, topic_publisher = self.topic_subscribers.get(topic), self.topic_publishers.get(topic)
        return (topic_subscriber is not None and topic_subscriber.lost(now_s)) or (
            topic_publisher is not None and topic_publisher.lost(now_s)
        )

    def found(
        self, directory: str, topic: bytes, found: Record | Unreadable | Membership | Denied | None, now_s: float
    ) -> None:
        """What a directory has said about a topic."""
        if isinstance(found, Record):
            self._recheck.found(topic)
            self._record(directory, topic, found, now_s)
        elif isinstance(found, Membership):
            self.update_membership(found, now_s)
        elif found is not None:
            self._refuse(topic, not_found(directory, topic, found), now_s)

    def _refuse(self, topic: bytes, error: ClusterError, now_s: float) -> None:
        """The topic is not available. Its users get the error; other topics are not affected."""
        self.tell(Note(Kind.REFUSED, str(error)))
        topic_subscriber = self.topic_subscribers.get(topic)
        if topic_subscriber is not None:
            topic_subscriber.refuse(error, now_s)
        topic_publisher = self.topic_publishers.get(topic)
        if topic_publisher is not None:
            topic_publisher.refuse_all(error)

    def _look_around(self, now_s: float) -> None:
        """Keep one leased link, so that membership news reaches us when a broker dies."""
        if not self.is_served(now_s):
            self.links.reach_out(now_s)

    def is_served(self, now_s: float) -> bool:
        return any(link.lease_until_s >= now_s for link in self.links.all_up())

    def _look_at_state(self, now_s: float) -> None:
        if not self.closed:
            self._become(self.links.state(now_s))

    def _become(self, change: StateChange) -> None:
        """Report a new state. The same state for another reason is not reported."""
        news, self.state = change.state is not self.state.state, change
        if news:
            self.tell(change)

    def outgoing(self) -> list[tuple[str, bytes]]:
        """Everything to be written now, by link name."""
        if self.unsent:
            self.send()
        return self.links.outgoing() + self.side_links.outgoing()
