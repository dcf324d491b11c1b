"""The load meter: one report a second from the server's own figures and the clients' counters.

Clients count messages; the server counts bytes. The meter adds up the first and reads the second, so its cost grows
with the number of clients and topics, not with the message rate. The two are reconciled in one number: how many of the
bytes the server sent are explained by what clients say they received.
"""

from __future__ import annotations

import msgspec

from nearcast.core.backend import Figures
from nearcast.core.bus import Report
from nearcast.core.counters import ClientReport, TopicCounters
from nearcast.core.names import is_topic
from nearcast.core.wire import PUSH_BYTES

TOPICS_MAX = 10_000  # of one report; counters of further ones are dropped, and that is counted


class LoadMeter:
    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.dropped = 0
        self._topics: dict[str, TopicCounters] = {}
        self._before: tuple[float, Figures] | None = None

    def client_report(self, payload: bytes, now_s: float) -> None:
        """One client's second."""
        try:
            report = msgspec.json.decode(payload, type=ClientReport)
        except (msgspec.DecodeError, RecursionError):
            self.dropped += 1
            return
        for topic, counters in report.topics.items():
            known = self._topics.get(topic)
            full = known is None and len(self._topics) >= TOPICS_MAX
            if full or not counters.plausible or not is_topic(topic.encode("utf-8", "surrogatepass")):
                self.dropped += 1
                continue
            self._topics[topic] = known.merged(counters) if known is not None else counters

    def measure(self, figures: Figures, now_s: float, wall_offset_s: float) -> Report | None:
        """The report since the last measurement; None for the first, which has nothing to compare with."""
        before, self._before = self._before, (now_s, figures)
        if before is None or now_s <= before[0]:
            return None
        seconds = now_s - before[0]

        def rate(now: float, then: float) -> float:
            return max(0.0, now - then) / seconds  # a server that was started anew counts from nothing

        topics, self._topics = self._topics, {}
        counted = sum(c.received_bytes + c.received * PUSH_BYTES for c in topics.values())
        return Report(
            broker=self.broker,
            at_s=now_s + wall_offset_s,
            seconds=seconds,
            output_bytes_per_s=rate(figures.output_bytes, before[1].output_bytes),
            input_bytes_per_s=rate(figures.input_bytes, before[1].input_bytes),
            connections=figures.connections,
            memory_bytes=figures.memory_bytes,
            cpu_share=rate(figures.cpu_s, before[1].cpu_s),
            counted_bytes_per_s=counted / seconds,
            topics=topics,
        )
