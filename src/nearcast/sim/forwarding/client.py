"""A client of the forwarding variant, and what all machines of the variant share."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from random import Random

import msgspec

from nearcast.core.model.membership import Ring
from nearcast.core.model.names import decode_topic, encode_topic, inbox_channel
from nearcast.core.model.settings import DEFAULT_TIMING
from nearcast.core.wire.backend import Credentials
from nearcast.core.wire.effects import Effect
from nearcast.core.wire.link import Link, Reply
from nearcast.core.wire.uplink import Uplink
from nearcast.sim.forwarding.wire import (
    DISPATCHER,
    Frame,
    Joined,
    Left,
    Redirect,
    Timers,
    decode,
    encode,
    pack_frame,
    read_frame,
)

Action = Callable[[Link], None]


class LinkedMachine:
    """A machine with links to a fixed set of servers: what clients, dispatchers and the load balancer share.

    Inputs: connected, received, lost, tick. Outputs: outgoing(), effects. Links are opened at the first tick. In a run
    of the variant only processes fail, never connections, so nothing is redone when a link is opened a second time.
    """

    def __init__(self, urls: Mapping[str, str], rng: Random) -> None:
        self.effects: list[Effect] = []
        self.wall_offset_s = 0.0
        self._waiting: dict[str, list[Action]] = {server: [] for server in urls}
        self._uplinks = {server: self._uplink(server, url, rng) for server, url in urls.items()}

    def _uplink(self, server: str, url: str, rng: Random) -> Uplink:
        return Uplink(
            server,
            url,
            Credentials(),
            lambda link, now_s: self._opened(server, link, now_s),
            timing=DEFAULT_TIMING,
            rng=rng,
        )

    def at(self, server: str, action: Action) -> None:
        """Run the action on the link to this server, now or as soon as the link is open. Actions keep their order."""
        link = self._uplinks[server].link
        if link is not None:
            action(link)
        else:
            self._waiting[server].append(action)

    def _opened(self, server: str, link: Link, now_s: float) -> None:
        waiting, self._waiting[server] = self._waiting[server], []
        for action in waiting:
            action(link)

    # --- inputs and outputs

    def connected(self, name: str, now_s: float) -> None:
        self._uplinks[name].connected(now_s)

    def received(self, name: str, data: bytes, now_s: float) -> None:
        self._uplinks[name].received(data, now_s, self.effects)

    def lost(self, name: str, reason: str, now_s: float) -> None:
        self._uplinks[name].lost(reason, now_s)

    def tick(self, now_s: float) -> None:
        for uplink in self._uplinks.values():
            uplink.tick(now_s, self.effects)

    def outgoing(self) -> list[tuple[str, bytes]]:
        return [(server, data) for server, uplink in self._uplinks.items() if (data := uplink.take())]


# --- client


class _Entry(msgspec.Struct):
    """One topic in the local plan."""

    broker: str
    version: int
    used_s: float


class _Hold:
    """One SUBSCRIBE at one server, from when it was sent until the UNSUBSCRIBE that ends it is confirmed."""

    def __init__(self) -> None:
        self.until_s = math.inf  # when it should end
        self.leaving = False  # the UNSUBSCRIBE was sent


class Subscription:
    """The subscription to one topic, at one server or, while it moves, at several. It is the sink of its messages."""

    def __init__(self, client: Client, topic: bytes, broker: str) -> None:
        self.topic = topic
        self.wanted = broker
        self.attached: str | None = None  # the wanted broker, once it has confirmed
        self.holds: dict[str, _Hold] = {}
        self._client = client
        self._seen: set[tuple[int, int]] = set()

    def frames(self, payloads: list[bytes], now_s: float) -> None:
        for payload in payloads:
            frame = read_frame(payload)
            if frame is None:
                self._client.heard(payload, now_s)
                continue
            self._client.used(self.topic, now_s)
            key = (frame.publisher, frame.sequence)
            if key not in self._seen:
                self._seen.add(key)
                self._client.delivered.append(key)


class Client(LinkedMachine):
    """Has a lazy, partial plan, moves its subscriptions, and removes duplicates (paper, IV.A.3-5).

    It knows a topic's broker only once a dispatcher has named it. Before that, and after `forget_s` without use, it
    goes where the ring says. A subscription moves by SUBSCRIBE at the new server and UNSUBSCRIBE at the old one. The
    paper does not say whether the second waits for the first. Here it waits until the new server has confirmed, because
    that loses less, and messages that the old server sent before it ran the UNSUBSCRIBE are still accepted. With
    `linger_s`, which is not in the paper, it waits longer.

    The program reads and empties `acknowledged` and `delivered`.
    """

    def __init__(self, client_id: int, urls: Mapping[str, str], ring: Ring, rng: Random, timers: Timers) -> None:
        super().__init__({broker: urls[broker] for broker in ring.brokers}, rng)
        self.client_id = client_id
        self.acknowledged: list[object] = []
        self.delivered: list[tuple[int, int]] = []  # (publisher, sequence)
        self.subscriptions: dict[bytes, Subscription] = {}
        self._ring = ring
        self._timers = timers
        self._plan: dict[bytes, _Entry] = {}
        for broker in ring.brokers:
            self.at(broker, self._greet)

    def _greet(self, link: Link) -> None:
        inbox = inbox_channel(self.client_id)
        link.control[inbox] = self.heard
        link.subscribe(inbox)

    def broker_of(self, topic: bytes) -> str:
        entry = self._plan.get(topic)
        return self._ring.owner(topic) if entry is None else entry.broker

    def used(self, topic: bytes, now_s: float) -> None:
        entry = self._plan.get(topic)
        if entry is not None:
            entry.used_s = now_s

    # --- publishing

    def publish(self, topic: bytes, sequence: int, token: object, now_s: float) -> None:
        """`acknowledged` gets the token when the server has answered."""
        self.used(topic, now_s)
        data = pack_frame(Frame(self.client_id, sequence))

        def answered(reply: Reply, at_s: float) -> None:
            self.acknowledged.append(token)

        self.at(self.broker_of(topic), lambda link: link.send(answered, "PUBLISH", topic, data))

    # --- subscribing

    def subscribe(self, topic: bytes) -> None:
        subscription = self.subscriptions[topic] = Subscription(self, topic, self.broker_of(topic))
        self._hold(subscription)

    def _hold(self, subscription: Subscription) -> None:
        broker, topic = subscription.wanted, subscription.topic
        hold = subscription.holds[broker] = _Hold()
        confirmed = partial(self._confirmed, subscription, broker, hold)
        word = encode(Joined(decode_topic(topic), self.client_id))

        def act(link: Link) -> None:
            link.topics[topic] = subscription
            link.subscribe(topic)
            link.send(confirmed, "PUBLISH", DISPATCHER, word)  # its reply comes after the confirmation

        self.at(broker, act)

    def _confirmed(self, subscription: Subscription, broker: str, hold: _Hold, reply: Reply, now_s: float) -> None:
        if subscription.wanted != broker or subscription.holds.get(broker) is not hold:
            return  # redirected in the meantime
        subscription.attached = broker
        for other, old in subscription.holds.items():
            if other != broker:
                old.until_s = min(old.until_s, now_s + self._timers.linger_s)
        self._release_due(subscription, now_s)

    def _release_due(self, subscription: Subscription, now_s: float) -> None:
        for broker, hold in list(subscription.holds.items()):
            if now_s >= hold.until_s and not hold.leaving:
                self._release(subscription, broker, hold)

    def _release(self, subscription: Subscription, broker: str, hold: _Hold) -> None:
        hold.leaving = True
        topic = subscription.topic

        def released(reply: Reply, now_s: float) -> None:
            if subscription.holds.get(broker) is hold:  # and not subscribed again in the meantime
                del subscription.holds[broker]

        def act(link: Link) -> None:
            link.unsubscribe(topic)
            link.send(released, "PUBLISH", DISPATCHER, encode(Left(decode_topic(topic))))

        self.at(broker, act)

    # --- the local plan

    def heard(self, payload: bytes, now_s: float) -> None:
        """A notice to use another broker, on the topic's channel or in the inbox."""
        word = decode(payload)
        assert isinstance(word, Redirect)
        topic = encode_topic(word.topic)
        entry = self._plan.get(topic)
        if entry is not None and word.version <= entry.version:
            return
        self._plan[topic] = _Entry(word.broker, word.version, now_s)
        subscription = self.subscriptions.get(topic)
        if subscription is not None and subscription.wanted != word.broker:
            subscription.wanted, subscription.attached = word.broker, None
            self._hold(subscription)

    def tick(self, now_s: float) -> None:
        super().tick(now_s)
        for subscription in self.subscriptions.values():
            self._release_due(subscription, now_s)
        for topic, entry in list(self._plan.items()):
            if topic not in self.subscriptions and now_s - entry.used_s > self._timers.forget_s:
                del self._plan[topic]
