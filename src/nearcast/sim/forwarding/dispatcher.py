"""The dispatcher next to a server, which forwards and redirects, and the load balancer (paper, sections IV.A.1-5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from random import Random

from nearcast.core.model.membership import Ring
from nearcast.core.model.names import AGENT_CHANNEL, CONTROLLER_CHANNEL, decode_topic, encode_topic, inbox_channel
from nearcast.core.model.settings import DEFAULT_TIMING, NEVER_S
from nearcast.core.wire.link import Link, Reply
from nearcast.sim.forwarding.client import LinkedMachine
from nearcast.sim.forwarding.wire import (
    DISPATCHER,
    Emptied,
    Frame,
    Holding,
    Joined,
    Left,
    Plan,
    Redirect,
    Route,
    Timers,
    decode,
    encode,
    pack_frame,
    read_frame,
)

STORE = "store"  # the server on which dispatchers and the load balancer talk


# --- load balancer


class LoadBalancer(LinkedMachine):
    """Sends each new plan to all dispatchers, again and again until they have it (paper, section IV.A.1)."""

    def __init__(self, urls: Mapping[str, str], ring: Ring, rng: Random, timers: Timers) -> None:
        super().__init__({STORE: urls[STORE]}, rng)
        self.moves = 0
        self._ring = ring
        self._timers = timers
        self._plan = Plan(1, {})  # the paper's plan 0: every topic is where the ring puts it
        self._moved_s: dict[bytes, float] = {}
        self._holding: dict[str, int] = {}  # broker -> version of the plan its dispatcher says it has
        self._sent_s: dict[str, float] = {}
        self.at(STORE, self._listen)

    def _listen(self, link: Link) -> None:
        link.control[CONTROLLER_CHANNEL] = self._heard
        link.subscribe(CONTROLLER_CHANNEL)

    def owner(self, topic: bytes) -> str:
        """The broker of a topic in the newest plan."""
        route = self._plan.routes.get(decode_topic(topic))
        return self._ring.owner(topic) if route is None else route.broker

    def rested(self, topic: bytes, now_s: float) -> bool:
        """Whether T_wait has passed since the topic's last move."""
        return now_s - self._moved_s.get(topic, NEVER_S) >= self._timers.wait_s

    def move(self, topic: bytes, broker: str, now_s: float) -> None:
        self.moves += 1
        self._moved_s[topic] = now_s
        version = self._plan.version + 1
        route = Route(broker, version, self.owner(topic))
        self._plan = Plan(version, {**self._plan.routes, decode_topic(topic): route})
        for name in self._ring.brokers:
            self._send(name, now_s)

    def _heard(self, payload: bytes, now_s: float) -> None:
        word = decode(payload)
        assert isinstance(word, Holding)
        self._holding[word.broker] = word.version
        if word.version == 0:
            self._send(word.broker, now_s)

    def _send(self, broker: str, now_s: float) -> None:
        self._sent_s[broker] = now_s
        data = encode(self._plan)
        self.at(STORE, lambda link: link.tell(AGENT_CHANNEL + broker.encode(), data))

    def tick(self, now_s: float) -> None:
        super().tick(now_s)
        for broker, version in self._holding.items():
            late = now_s - self._sent_s.get(broker, NEVER_S) >= DEFAULT_TIMING.retry_s
            if version < self._plan.version and late:
                self._send(broker, now_s)


# --- dispatcher


class _Leaving:
    """A topic that has moved away from this server."""

    def __init__(self, route: Route, until_s: float) -> None:
        self.route = route
        self.until_s = until_s  # until then it listens for publishers that do not know about the move
        self.switched = False  # subscribers have been notified
        self.emptied = False  # subscribers are gone, and the new server's dispatcher has been notified


class _Channel:
    """What a dispatcher does with one topic. It is the sink of its messages."""

    def __init__(self, dispatcher: Dispatcher, topic: bytes) -> None:
        self.topic = topic
        self.listening = False
        self.leaving: _Leaving | None = None
        self.behind: dict[str, int] = {}  # former servers that may have subscribers -> version of the move from there
        self._dispatcher = dispatcher

    def frames(self, payloads: list[bytes], now_s: float) -> None:
        for payload in payloads:
            frame = read_frame(payload)
            if frame is not None:
                self._dispatcher.published(self, frame)


class Dispatcher(LinkedMachine):
    """Forwards messages and redirects clients at one server.

    When a topic `c` moves from H0 to H1, each dispatcher learns about it when the plan reaches it.

    - The one at H0 listens to `c` on H0 for `forget_s`. It forwards what is published there to H1, notifies the
      publisher, and with the first publication tells all subscribers of H0 to switch. When no subscriber is left there,
      it informs the dispatcher of H1.
    - The one at H1 listens to `c` on H1 and forwards what is published there to H0 until it hears that H0 is empty.
    - The one at the ring's owner of `c` always listens, forwards and redirects.
    - Every dispatcher notifies clients that subscribe at its server but should not.

    Where the paper is silent, the choice is the one that loses less. Forwarded messages are passed on along a chain of
    moves. A restarted dispatcher gets the plan at once, with each topic's last move. It takes up the roles that follow
    from it, and treats every topic of other brokers as if it had just moved away from here.
    """

    def __init__(
        self, broker: str, topics: Sequence[bytes], urls: Mapping[str, str], ring: Ring, rng: Random, timers: Timers
    ) -> None:
        super().__init__(urls, rng)
        self.version = 0  # of the plan; 0: none yet
        self._broker = broker
        self._ring = ring
        self._timers = timers
        self._routes: dict[str, Route] = {}
        self._channels = {topic: _Channel(self, topic) for topic in topics}
        self._plan_channel = AGENT_CHANNEL + broker.encode()
        self.at(broker, self._greet_server)
        self.at(STORE, self._greet_balancer)

    def _greet_server(self, link: Link) -> None:
        link.control[DISPATCHER] = self._heard
        link.subscribe(DISPATCHER)
        for channel in self._channels.values():
            self._listen(channel, 0.0)

    def _greet_balancer(self, link: Link) -> None:
        link.control[self._plan_channel] = self._heard
        link.subscribe(self._plan_channel)
        self._say_holding(link)

    def _say_holding(self, link: Link) -> None:
        link.tell(CONTROLLER_CHANNEL, encode(Holding(self._broker, self.version)))

    def owner(self, topic: bytes) -> str:
        route = self._routes.get(decode_topic(topic))
        return self._ring.owner(topic) if route is None else route.broker

    # --- a new plan

    def _heard(self, payload: bytes, now_s: float) -> None:
        word = decode(payload)
        if isinstance(word, Plan):
            self._take(word, now_s)
        elif self.version == 0:
            return  # without a plan there is nothing to do
        elif isinstance(word, Joined):
            self._redirect(encode_topic(word.topic), word.client)
        elif isinstance(word, Left):
            self._count(self._channels[encode_topic(word.topic)])
        elif isinstance(word, Emptied):
            channel = self._channels[encode_topic(word.topic)]
            if channel.behind.get(word.broker, word.version + 1) <= word.version:
                del channel.behind[word.broker]
                self._listen(channel, now_s)

    def _take(self, plan: Plan, now_s: float) -> None:
        if plan.version > self.version:
            restarted = self.version == 0
            self.version = plan.version
            before, self._routes = self._routes, plan.routes
            for name, route in plan.routes.items():
                channel = self._channels[encode_topic(name)]
                if restarted:
                    self._recover(channel, route, now_s)
                elif name not in before or before[name].version < route.version:
                    former = before[name].broker if name in before else self._ring.owner(channel.topic)
                    self._moved(channel, former, route, now_s)
        self.at(STORE, self._say_holding)

    def _moved(self, channel: _Channel, former: str, route: Route, now_s: float) -> None:
        channel.behind.pop(route.broker, None)
        if route.broker == self._broker:
            channel.leaving = None
            if former != self._broker:
                channel.behind[former] = route.version
        elif former == self._broker:
            channel.leaving = _Leaving(route, now_s + self._timers.forget_s)
            self._count(channel)
        self._listen(channel, now_s)

    def _recover(self, channel: _Channel, route: Route, now_s: float) -> None:
        former = route.previous if route.broker == self._broker else self._broker
        self._moved(channel, former, route, now_s)
        if channel.leaving is not None:
            self._switch(channel.topic, channel.leaving)

    def _listen(self, channel: _Channel, now_s: float) -> None:
        """Subscribe to the topic at this server, or stop."""
        leaving = channel.leaving is not None and now_s < channel.leaving.until_s
        wanted = leaving or bool(channel.behind) or self._ring.owner(channel.topic) == self._broker
        if wanted != channel.listening:
            channel.listening = wanted
            self.at(self._broker, partial(_subscribe if wanted else _unsubscribe, channel=channel))

    # --- publications

    def published(self, channel: _Channel, frame: Frame) -> None:
        """A message ran on this server: forward it to where it has not been, and notify the clients concerned."""
        if self.version == 0:
            return
        topic, leaving = channel.topic, channel.leaving
        if leaving is not None and not leaving.switched:
            self._switch(topic, leaving)
        owner = self.owner(topic)
        onward = pack_frame(frame._replace(via=(*frame.via, self._broker)))
        for server in dict.fromkeys((owner, *channel.behind)):
            if server != self._broker and server not in frame.via:
                self.at(server, lambda link: link.tell(topic, onward))
        if not frame.via:
            self._redirect(topic, frame.publisher)

    def _switch(self, topic: bytes, leaving: _Leaving) -> None:
        leaving.switched = True
        word = encode(Redirect(decode_topic(topic), leaving.route.broker, leaving.route.version))
        self.at(self._broker, lambda link: link.tell(topic, word))

    def _redirect(self, topic: bytes, client: int) -> None:
        """Tell a client of this server which server to use, if it is a different one."""
        route = self._routes.get(decode_topic(topic))
        if route is not None and route.broker != self._broker:
            word = encode(Redirect(decode_topic(topic), route.broker, route.version))
            self.at(self._broker, lambda link: link.tell(inbox_channel(client), word))

    # --- ending

    def tick(self, now_s: float) -> None:
        super().tick(now_s)
        if self.version == 0 and self._uplinks[STORE].link is not None:
            self.at(STORE, self._say_holding)
        for channel in self._channels.values():
            self._count(channel)
            self._listen(channel, now_s)

    def _count(self, channel: _Channel) -> None:
        """Ask this server whether the topic, which has moved away, still has subscribers here."""
        leaving = channel.leaving
        if leaving is not None and not leaving.emptied:
            own = 1 if channel.listening else 0
            counted = partial(self._counted, channel, leaving, own)
            self.at(self._broker, lambda link: link.send(counted, "PUBSUB", "NUMSUB", channel.topic))

    def _counted(self, channel: _Channel, leaving: _Leaving, own: int, reply: Reply, now_s: float) -> None:
        assert isinstance(reply, list)
        if channel.leaving is not leaving or leaving.emptied or reply[1] > own:
            return
        leaving.emptied = True
        word = encode(Emptied(decode_topic(channel.topic), self._broker, leaving.route.version))
        self.at(leaving.route.broker, lambda link: link.tell(DISPATCHER, word))


def _subscribe(link: Link, channel: _Channel) -> None:
    link.topics[channel.topic] = channel
    link.subscribe(channel.topic)


def _unsubscribe(link: Link, channel: _Channel) -> None:
    link.unsubscribe(channel.topic)
