"""The brokers of the flow simulator: their queues, and the output buffers of their subscribers' connections."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nearcast.flow.model import BoolArray, Demand, FloatArray, FlowSettings, IntArray, Subscriptions, summed
from nearcast.flow.traffic import Layout, TopicTraffic, Work

# Closer to 1, a queue needs minutes to reach the mean that the formula gives; there the backlog determines the delay.
RHO_MAX = 0.99


# --- queues


@dataclass(frozen=True, slots=True)
class Service:
    """How a step's work was served, per broker."""

    backlog_s: FloatArray  # wait behind the backlog
    crowd_s: FloatArray  # mean wait behind publications that arrive at the same time
    busy: FloatArray  # probability of such a wait
    sent_share: FloatArray  # messages sent / messages requested; above 1 while a backlog shrinks
    lost_share: FloatArray

    @property
    def wait_s(self) -> FloatArray:
        return self.backlog_s + self.crowd_s

    def then(self, following: Service) -> Service:
        """Both together, if the output of this one is the input of the following one."""
        longer = self.crowd_s >= following.crowd_s
        return Service(
            backlog_s=self.backlog_s + following.backlog_s,
            crowd_s=np.where(longer, self.crowd_s, following.crowd_s),
            busy=np.where(longer, self.busy, following.busy),
            sent_share=self.sent_share * following.sent_share,
            lost_share=self.lost_share + self.sent_share * following.lost_share,
        )


class Queues:
    """How long messages wait, and what is lost when a server cannot keep up. In each step: `compute`, then `send`.

    A server's CPU copies a publication to every subscriber, and the copies go out over its bandwidth. Each of the two
    has a backlog, in seconds of work. In one step of length dt

        backlog' = backlog + (rho - 1) dt          between 0 and `backlog_max_s`; what exceeds that is lost
        wait     = mean backlog + lambda E[S^2] / (2 (1 - rho))      (Pollaczek-Khinchine; S: time of a whole fan-out)

    rho is the work requested per second. The second term is the wait behind other publications that happen to arrive at
    the same time. A publisher's own messages do not arrive together, hence the factor 1 - 1 / publishers. CPU and
    bandwidth work on one message at the same time, so only the longer of their second terms counts. Below capacity,
    waits are short. Above it, they grow by rho - 1 seconds per second until the server holds all it can. Then it has
    failed, and keeps losing messages.
    """

    def __init__(self, settings: FlowSettings) -> None:
        self._settings = settings
        self._cpu_s = np.zeros(0)
        self._egress_s = np.zeros(0)

    def compute(self, work: Work) -> Service:
        """The CPU's part."""
        self._cpu_s, service = self._served(_grown(self._cpu_s, len(work.cpu)), work.cpu, work.cpu_square, work)
        return service

    def send(self, work: Work, computed: Service, extra_bytes_per_s: FloatArray) -> Service:
        """CPU and bandwidth. `extra_bytes_per_s`: sent besides deliveries; negative where deliveries are held back."""
        extra = extra_bytes_per_s / self._settings.limit_bytes_per_s
        rho = np.maximum(work.egress * computed.sent_share + extra, 0.0)
        self._egress_s, service = self._served(_grown(self._egress_s, len(rho)), rho, work.egress_square, work)
        return computed.then(service)

    def _served(
        self, before_s: FloatArray, rho: FloatArray, square: FloatArray, work: Work
    ) -> tuple[FloatArray, Service]:
        step_s = self._settings.step_s
        unlimited_s = np.maximum(before_s + (rho - 1) * step_s, 0.0)
        left_s = np.minimum(unlimited_s, self._settings.backlog_max_s)
        asked_s = np.maximum(rho * step_s, 1e-12)
        others = 1 - 1 / np.maximum(work.publishers, 1.0)
        service = Service(
            backlog_s=(before_s + left_s) / 2,
            crowd_s=square * others / (2 * (1 - np.minimum(rho, RHO_MAX))),
            busy=np.minimum(rho, 1.0),
            sent_share=np.where(rho > 0, (before_s + rho * step_s - unlimited_s) / asked_s, 1.0),
            lost_share=(unlimited_s - left_s) / asked_s,
        )
        return left_s, service


def _grown(values: FloatArray, rows: int) -> FloatArray:
    return np.concatenate([values, np.zeros(rows - len(values))])


# --- connections


_BROKER_BITS = 20  # a connection's key: client number, then broker row
_BROKER_MASK = (1 << _BROKER_BITS) - 1
_CHOICE = 2654435761  # spreads the subscribers of an all_publishers topic over its brokers


@dataclass(frozen=True, slots=True)
class Buffered:
    """The effect of the buffers in a step. Rates are bytes or deliveries per second."""

    broker_bytes_per_s: FloatArray  # per broker: sent beyond what was requested; negative while buffers grow
    topic_bytes_per_s: FloatArray  # per topic, the same
    topic_wait_s: FloatArray  # per topic: mean wait of a delivery in a buffer
    lost_per_s: float = 0.0  # deliveries
    dropped: int = 0  # connections


@dataclass(frozen=True, slots=True)
class _Flows:
    """The topics' flows on the connections examined: one entry per subscription and broker it is attached to."""

    topic: IntArray
    connection: IntArray  # index into `keys`
    bytes_per_s: FloatArray
    messages_per_s: FloatArray
    share: FloatArray  # of the subscription's messages
    keys: IntArray  # of the connections, sorted

    @property
    def parts(self) -> FloatArray:
        """The share of each flow in its connection's traffic; equal shares where nothing flows now."""
        total = summed(self.connection, self.bytes_per_s, len(self.keys))[self.connection]
        flows = np.bincount(self.connection)[self.connection]
        return np.divide(self.bytes_per_s, total, out=1 / flows, where=total > 0)


class Connections:
    """What servers hold for subscribers that take messages more slowly than they arrive.

    A connection takes `subscriber_bytes_per_s`. The excess waits in the connection's output buffer at the server. When
    the buffer is full, the server drops the connection, as Valkey and Redis do (client-output-buffer-limit). What the
    buffer held is lost, and so is what arrives until the subscriber is back. This limit, not the server's CPU or
    bandwidth, ends the curve of Dynamoth's figure 4b. Only connections that get more than they take, or still hold
    something, are examined: almost always none.
    """

    def __init__(self, settings: FlowSettings) -> None:
        self._settings = settings
        self._keys = np.zeros(0, dtype=np.int64)
        self._held_bytes = np.zeros(0)
        self._away_until_s = np.zeros(0)

    def step(
        self, demand: Demand, traffic: TopicTraffic, layout: Layout, computed_share: FloatArray, at_s: float
    ) -> Buffered:
        """`computed_share`: the share of each broker's messages that its CPU has copied to the connections."""
        topics, rows = len(traffic.subscribers), len(computed_share)
        chosen = self._crowded(demand, traffic)
        if not chosen.any():
            self._keys, self._held_bytes, self._away_until_s = np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0)
            return Buffered(np.zeros(rows), np.zeros(topics), np.zeros(topics))
        subscriptions = Subscriptions(demand.subscriptions.client[chosen], demand.subscriptions.topic[chosen])
        flows = _flows(subscriptions, traffic, layout, computed_share)
        return self._fill(flows, traffic.subscribers, rows, at_s)

    def _crowded(self, demand: Demand, traffic: TopicTraffic) -> BoolArray:
        """The subscriptions of clients that get more than one connection takes, or have messages in a buffer."""
        client, topic = demand.subscriptions
        per_subscriber = traffic.publications_per_s * traffic.bytes_per_delivery
        crowded = summed(client, per_subscriber[topic], demand.clients) > self._settings.subscriber_bytes_per_s
        held_for = self._keys >> _BROKER_BITS
        crowded[held_for[held_for < demand.clients]] = True
        chosen: BoolArray = crowded[client]
        return chosen

    def _fill(self, flows: _Flows, subscribers: FloatArray, rows: int, at_s: float) -> Buffered:
        settings, step_s, count = self._settings, self._settings.step_s, len(flows.keys)
        asked_bytes = summed(flows.connection, flows.bytes_per_s, count) * step_s
        messages = summed(flows.connection, flows.messages_per_s, count) * step_s
        held_bytes, away_until_s = self._before(flows.keys)
        away = away_until_s > at_s
        left_bytes = np.maximum(held_bytes + asked_bytes - settings.subscriber_bytes_per_s * step_s, 0.0)
        dropped = ~away & (left_bytes > settings.output_buffer_bytes)
        lost_bytes = np.where(away, asked_bytes, np.where(dropped, left_bytes, 0.0))
        sent_bytes = np.where(away, 0.0, held_bytes + asked_bytes - left_bytes)
        wait_s = np.where(away, 0.0, (held_bytes + left_bytes) / 2 / settings.subscriber_bytes_per_s)
        self._keep(
            flows.keys,
            np.where(away | dropped, 0.0, left_bytes),
            np.where(dropped, at_s + step_s + settings.reconnect_s, away_until_s),
            at_s + step_s,
        )
        mean_bytes = np.divide(asked_bytes, messages, out=np.ones(count), where=messages > 0)
        topics = len(subscribers)
        waits_s = summed(flows.topic, wait_s[flows.connection] * flows.share, topics)
        beyond = (sent_bytes - asked_bytes)[flows.connection] / step_s * flows.parts
        return Buffered(
            broker_bytes_per_s=summed(flows.keys & _BROKER_MASK, (sent_bytes - asked_bytes) / step_s, rows),
            topic_bytes_per_s=summed(flows.topic, beyond, topics),
            topic_wait_s=waits_s / np.maximum(subscribers, 1.0),
            lost_per_s=float((lost_bytes / mean_bytes).sum() / step_s),
            dropped=int(dropped.sum()),
        )

    def _before(self, keys: IntArray) -> tuple[FloatArray, FloatArray]:
        """What was held for these connections, and until when they are away."""
        held_bytes, away_until_s = np.zeros(len(keys)), np.zeros(len(keys))
        known, mine, theirs = np.intersect1d(keys, self._keys, assume_unique=True, return_indices=True)
        if len(known):
            held_bytes[mine], away_until_s[mine] = self._held_bytes[theirs], self._away_until_s[theirs]
        return held_bytes, away_until_s

    def _keep(self, keys: IntArray, held_bytes: FloatArray, away_until_s: FloatArray, now_s: float) -> None:
        kept = (held_bytes > 0) | (away_until_s > now_s)
        self._keys, self._held_bytes, self._away_until_s = keys[kept], held_bytes[kept], away_until_s[kept]


def _flows(subscriptions: Subscriptions, traffic: TopicTraffic, layout: Layout, computed_share: FloatArray) -> _Flows:
    client, topic = subscriptions
    one_broker = layout.subscriber_share[topic] < 1  # all_publishers: a subscriber attaches to one of several
    attached = np.where(one_broker, 1, layout.count[topic])
    entry = np.repeat(np.arange(len(topic)), attached)
    number = np.arange(len(entry)) - np.repeat(np.cumsum(attached) - attached, attached)
    choice = np.where(one_broker[entry], client[entry] * _CHOICE >> 16, number)
    topic_of = topic[entry]
    broker = layout.slot_broker[layout.slot_of(topic_of, choice)]
    keys, connection = np.unique((client[entry] << _BROKER_BITS) + broker, return_inverse=True)
    messages_per_s = (traffic.publications_per_s * layout.publication_share)[topic_of] * computed_share[broker]
    return _Flows(
        topic=topic_of,
        connection=connection,
        bytes_per_s=messages_per_s * traffic.bytes_per_delivery[topic_of],
        messages_per_s=messages_per_s,
        share=1 / attached[entry],
        keys=keys,
    )
