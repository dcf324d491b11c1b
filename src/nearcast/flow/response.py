"""Response times: from a client's publish until its own update comes back to it.

Two one-way network delays and the broker's part between them. In a workload in which nobody hears itself (figures 4a
and 4b) it is the time from a publisher to a subscriber. The broker's part of the mean is exact, the network's part
and the 99th percentile come from a sample of messages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from nearcast.flow.brokers import Service
from nearcast.flow.delays import Delays
from nearcast.flow.demand import Demand, FloatArray, IntArray, summed
from nearcast.flow.layout import Layout
from nearcast.flow.settings import FlowSettings
from nearcast.flow.traffic import TopicTraffic, Work

SAMPLES = 2048  # messages a step: the mean of two delays is then known to about 0.6 ms


@dataclass(frozen=True, slots=True)
class ResponseTimes:
    mean_s: float = math.nan
    p99_s: float = math.nan


@dataclass(frozen=True, slots=True)
class _Messages:
    """Whose response times count: how many a second on each topic, and a sample of them."""

    per_s: FloatArray
    publisher: IntArray
    subscriber: IntArray
    topic: IntArray


@dataclass(frozen=True, slots=True)
class Responses:
    """What response times depend on in one step, the network apart."""

    layout: Layout
    traffic: TopicTraffic
    work: Work
    service: Service
    buffer_wait_s: FloatArray  # per topic
    settings: FlowSettings

    def times(self, demand: Demand, delays: Delays, rng: np.random.Generator) -> ResponseTimes:
        messages = _own_updates(demand, self.traffic, rng) or _deliveries(demand, self.traffic, rng)
        if messages is None:
            return ResponseTimes()
        fan_out_s = self._fan_out_s()
        slot = self.layout.slot_of(messages.topic, rng.integers(1 << 40, size=SAMPLES))
        broker = self.layout.slot_broker[slot]
        up_s = delays.one_way_s(messages.publisher, broker, rng)
        down_s = delays.one_way_s(messages.subscriber, broker, rng)
        in_broker_s = (
            self.settings.cpu_s_per_publication
            + self.service.backlog_s[broker]
            + self._crowd_s(broker, rng)
            + fan_out_s[slot] * rng.random(SAMPLES)  # the place of the subscriber in the fan-out
            + self.buffer_wait_s[messages.topic]
        )
        mean_s = float((up_s + down_s).mean()) + self._mean_in_broker_s(messages.per_s, fan_out_s)
        return ResponseTimes(mean_s, float(np.quantile(up_s + down_s + in_broker_s, 0.99)))

    def _fan_out_s(self) -> FloatArray:
        """Per slot: how long one publication takes from its first subscriber to its last."""
        per_delivery_s = np.maximum(
            self.settings.cpu_s_per_delivery, self.traffic.bytes_per_delivery / self.settings.limit_bytes_per_s
        )
        return self.work.fan_out * per_delivery_s[self.layout.slot_topic]

    def _crowd_s(self, broker: IntArray, rng: np.random.Generator) -> FloatArray:
        """Waits with the given mean: none if the server is idle, else exponential, as for a busy M/G/1 queue."""
        busy = self.service.busy[broker]
        mean_s = np.divide(self.service.crowd_s[broker], busy, out=np.zeros(len(busy)), where=busy > 0)
        return np.where(rng.random(len(busy)) < busy, rng.exponential(size=len(busy)) * mean_s, 0.0)

    def _mean_in_broker_s(self, per_s: FloatArray, fan_out_s: FloatArray) -> float:
        slot_s = self.service.wait_s[self.layout.slot_broker] + fan_out_s / 2
        # Whatever the mode, a topic's messages are spread evenly over its brokers.
        topic_s = self.layout.per_topic(slot_s) / np.maximum(self.layout.count, 1) + self.buffer_wait_s
        return self.settings.cpu_s_per_publication + float(per_s @ topic_s / per_s.sum())


def _own_updates(demand: Demand, traffic: TopicTraffic, rng: np.random.Generator) -> _Messages | None:
    """Updates whose sender is subscribed where it publishes."""
    client, topic, rate_per_s = demand.publications
    per_s = traffic.publications_per_s
    if not demand.all_hear_themselves:
        rate_per_s = rate_per_s * demand.heard_by_themselves()
        per_s = summed(topic, rate_per_s, len(per_s))
    drawn = _draw(rate_per_s, rng)
    return None if drawn is None else _Messages(per_s, client[drawn], client[drawn], topic[drawn])


def _deliveries(demand: Demand, traffic: TopicTraffic, rng: np.random.Generator) -> _Messages | None:
    """All deliveries. The sample draws publishers from all topics alike: only a delay matrix could tell."""
    client, topic = demand.subscriptions
    drawn = _draw(traffic.publications_per_s[topic], rng)
    publisher = _draw(demand.publications.rate_per_s, rng)
    if drawn is None or publisher is None:
        return None
    return _Messages(traffic.deliveries_per_s, demand.publications.client[publisher], client[drawn], topic[drawn])


def _draw(weights: FloatArray, rng: np.random.Generator) -> IntArray | None:
    """Indices at random, in proportion to their weights; None if all are 0."""
    sums = np.cumsum(weights)
    if not len(sums) or sums[-1] <= 0:
        return None
    return np.searchsorted(sums, rng.random(SAMPLES) * sums[-1], side="right")
