"""Traffic: where every topic is, and a step's demand as rates per topic, per slot and per broker."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nearcast.core.model.placement import Mode
from nearcast.flow.model import BoolArray, Demand, FloatArray, FlowSettings, IntArray, summed

NOWHERE = -1


# --- layout


class Layout:
    """Where every topic is: one slot for each pair of a topic and a broker that carries it.

    A topic in mode `single` has one slot. A replicated topic has n, and its load divides evenly (Dynamoth II.B): with
    all_subscribers, each broker runs 1/n of the publications to all subscribers; with all_publishers, all publications
    to 1/n of the subscribers. Brokers are rows: numbers in order of joining, never used twice.
    """

    def __init__(self, topics: int) -> None:
        self.home = np.full(topics, NOWHERE, dtype=np.int64)  # its first broker, or the only one
        self._replicated: dict[int, tuple[Mode, tuple[int, ...]]] = {}
        self.build()

    # --- changing

    def place(self, topic: int, mode: Mode, brokers: tuple[int, ...]) -> None:
        self.home[topic] = brokers[0]
        self._replicated.pop(topic, None)
        if mode is not Mode.SINGLE:
            self._replicated[topic] = (mode, brokers)

    def forget(self, topics: IntArray) -> None:
        """Remove these topics until they are used again."""
        self.home[topics] = NOWHERE
        for topic in topics.tolist():
            self._replicated.pop(topic, None)

    def build(self) -> None:
        """Rebuild the arrays. Call this once after changes."""
        count = (self.home != NOWHERE).astype(np.int64)
        for topic, (_, brokers) in self._replicated.items():
            count[topic] = len(brokers)
        first = np.cumsum(count) - count
        slot_broker = np.repeat(self.home, count)
        publication_share = np.ones(len(self.home))
        subscriber_share = np.ones(len(self.home))
        for topic, (mode, brokers) in self._replicated.items():
            slot_broker[first[topic] : first[topic] + len(brokers)] = brokers
            share = publication_share if mode is Mode.ALL_SUBSCRIBERS else subscriber_share
            share[topic] = 1 / len(brokers)
        self.count: IntArray = count  # brokers of each topic
        self.first: IntArray = first  # its first slot
        self.slot_broker: IntArray = slot_broker
        self.slot_topic: IntArray = np.repeat(np.arange(len(self.home)), count)
        self.publication_share: FloatArray = publication_share  # of each topic: the share one of its brokers runs
        self.subscriber_share: FloatArray = subscriber_share  # of each topic: the share attached to one of its brokers

    # --- asking

    def on(self, broker: int) -> IntArray:
        """The topics this broker carries, wholly or in part."""
        return self.slot_topic[self.slot_broker == broker]

    def per_broker(self, per_slot: FloatArray, rows: int) -> FloatArray:
        return summed(self.slot_broker, per_slot, rows)

    def per_topic(self, per_slot: FloatArray) -> FloatArray:
        return summed(self.slot_topic, per_slot, len(self.home))

    def slot_of(self, topics: IntArray, choice: IntArray) -> IntArray:
        """One slot of each of these topics, chosen by an arbitrary number."""
        return self.first[topics] + choice % self.count[topics]


# --- rates


@dataclass(frozen=True, slots=True)
class TopicTraffic:
    """The demand per topic, whichever brokers carry it."""

    publishers: FloatArray
    publications_per_s: FloatArray
    subscribers: FloatArray
    bytes_per_delivery: FloatArray  # payload and overhead

    @property
    def deliveries_per_s(self) -> FloatArray:
        return self.publications_per_s * self.subscribers

    @property
    def loaded(self) -> BoolArray:
        return (self.subscribers > 0) | (self.publishers > 0)


def topic_traffic(demand: Demand, topics: int, settings: FlowSettings) -> TopicTraffic:
    published = demand.publications
    message_bytes = np.broadcast_to(np.asarray(demand.message_bytes, dtype=np.float64), topics)
    return TopicTraffic(
        publishers=np.bincount(published.topic, minlength=topics).astype(np.float64),
        publications_per_s=summed(published.topic, published.rate_per_s, topics),
        subscribers=np.bincount(demand.subscriptions.topic, minlength=topics).astype(np.float64),
        bytes_per_delivery=message_bytes + settings.overhead_bytes,
    )


@dataclass(frozen=True, slots=True)
class Work:
    """The work of the brokers. CPU and egress are seconds of work per second: above 1, a broker cannot keep up.

    `*_square` is the sum over publications of rate x (time of the whole fan-out)^2, from which waiting times follow.
    """

    fan_out: FloatArray  # per slot: deliveries of one publication
    slot_deliveries_per_s: FloatArray
    deliveries_per_s: FloatArray  # from here on per broker
    bytes_per_s: FloatArray
    publishers: FloatArray
    subscribers: FloatArray
    cpu: FloatArray
    cpu_square: FloatArray
    egress: FloatArray
    egress_square: FloatArray


def work_of(traffic: TopicTraffic, layout: Layout, rows: int, settings: FlowSettings) -> Work:
    topic = layout.slot_topic
    publications = (traffic.publications_per_s * layout.publication_share)[topic]
    fan_out = (traffic.subscribers * layout.subscriber_share)[topic]
    size = traffic.bytes_per_delivery[topic]
    cpu_s = settings.cpu_s_per_publication + fan_out * settings.cpu_s_per_delivery
    egress_s = fan_out * size / settings.limit_bytes_per_s
    deliveries = publications * fan_out
    return Work(
        fan_out=fan_out,
        slot_deliveries_per_s=deliveries,
        deliveries_per_s=layout.per_broker(deliveries, rows),
        bytes_per_s=layout.per_broker(deliveries * size, rows),
        publishers=layout.per_broker((traffic.publishers * layout.publication_share)[topic], rows),
        subscribers=layout.per_broker(fan_out, rows),
        cpu=layout.per_broker(publications * cpu_s, rows),
        cpu_square=layout.per_broker(publications * cpu_s**2, rows),
        egress=layout.per_broker(publications * egress_s, rows),
        egress_square=layout.per_broker(publications * egress_s**2, rows),
    )
