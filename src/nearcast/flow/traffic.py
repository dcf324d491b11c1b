"""Traffic: a step's demand as rates per topic, per slot and per broker."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nearcast.flow.demand import BoolArray, Demand, FloatArray, summed
from nearcast.flow.layout import Layout
from nearcast.flow.settings import FlowSettings


@dataclass(frozen=True, slots=True)
class TopicTraffic:
    """What each topic is asked for, whoever carries it."""

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
    """What the brokers are asked to do. CPU and egress are seconds of work per second: above 1 they cannot keep up.

    `*_square` is the sum over publications of rate x (time of the whole fan-out)^2: what waiting times follow from.
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
