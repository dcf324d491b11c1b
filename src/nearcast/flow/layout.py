"""Where every topic is, as arrays: one slot for each pair of a topic and a broker that carries it.

Mode `single` has one slot. A replicated topic has n, and its load divides evenly (Dynamoth II.B): with
all_subscribers each broker runs 1/n of the publications to all subscribers, with all_publishers all publications to
1/n of the subscribers.
"""

from __future__ import annotations

import numpy as np

from nearcast.core.placement import Mode
from nearcast.flow.demand import FloatArray, IntArray, summed

NOWHERE = -1


class Layout:
    """Brokers are rows: numbers in order of joining, never used twice."""

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
        """These topics are nowhere until they are used again."""
        self.home[topics] = NOWHERE
        for topic in topics.tolist():
            self._replicated.pop(topic, None)

    def build(self) -> None:
        """Make the arrays anew: to be called after changes, once."""
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
        self.publication_share: FloatArray = publication_share  # of each topic: what one of its brokers runs
        self.subscriber_share: FloatArray = subscriber_share  # of each topic: who is attached to one of its brokers

    # --- asking

    def on(self, broker: int) -> IntArray:
        """The topics this broker carries, wholly or in part."""
        return self.slot_topic[self.slot_broker == broker]

    def per_broker(self, per_slot: FloatArray, rows: int) -> FloatArray:
        return summed(self.slot_broker, per_slot, rows)

    def per_topic(self, per_slot: FloatArray) -> FloatArray:
        return summed(self.slot_topic, per_slot, len(self.home))

    def slot_of(self, topics: IntArray, choice: IntArray) -> IntArray:
        """One slot of each of these topics, chosen by a number that may be anything."""
        return self.first[topics] + choice % self.count[topics]
