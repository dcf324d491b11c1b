"""One hot topic with many publishers, many subscribers, or both (Dynamoth V.C, figures 4a and 4b)."""

from __future__ import annotations

import numpy as np

from nearcast.errors import UsageError
from nearcast.flow.model import Demand, Publications, Subscriptions

PUBLICATIONS_PER_S = 10.0  # of each publisher (V.C)
MESSAGE_BYTES = 200.0  # ours: small, so that the CPU runs out before the bandwidth, as in V.C.1


class HotTopic:
    """The workload. No client both publishes and subscribes."""

    def __init__(
        self,
        publishers: int,
        subscribers: int,
        *,
        publications_per_s: float = PUBLICATIONS_PER_S,
        message_bytes: float = MESSAGE_BYTES,
        name: str = "hot",
    ) -> None:
        if min(publishers, subscribers) < 0 or publications_per_s < 0 or message_bytes < 0:
            raise UsageError("a hot topic's publishers, subscribers, rate and message size must not be negative")
        self.topics = (name,)
        clients = np.arange(publishers + subscribers)
        topic = np.zeros(len(clients), dtype=np.int64)
        self._demand = Demand(
            len(clients),
            Subscriptions(clients[publishers:], topic[publishers:]),
            Publications(clients[:publishers], topic[:publishers], np.full(publishers, publications_per_s)),
            message_bytes,
        )

    def demand(self, at_s: float) -> Demand:
        return self._demand
