"""The load of one server: measured as one report a second, and logged to a stream on that server."""

from __future__ import annotations

from functools import partial
from itertools import islice

import msgspec

from nearcast.core.model.counters import REPORT_BYTES_MAX, REPORTED_MAX, ClientReport, TopicCounters
from nearcast.core.model.names import REPORT_STREAM, is_topic
from nearcast.core.model.reports import Report
from nearcast.core.wire.backend import Figures, ServerLink
from nearcast.core.wire.frames import PUSH_BYTES

TOPICS_MAX = 10_000  # in one report; counters of further topics are dropped, and the drops are counted


class LoadMeter:
    """Makes each report from the server's own figures and the clients' counters.

    Clients count messages; the server counts bytes. The meter adds up the first and reads the second, so its cost grows
    with the number of clients and topics, not with the message rate. One number connects the two: how many of the bytes
    that the server sent are explained by what clients say they received.
    """

    def __init__(self, broker: str) -> None:
        self.broker = broker
        self.dropped = 0
        self._topics: dict[str, TopicCounters] = {}
        self._before: tuple[float, Figures] | None = None

    def client_report(self, payload: bytes) -> ClientReport | None:
        """Add one client's counters of a second. Returns its report, if it can be read."""
        if len(payload) > REPORT_BYTES_MAX:
            self.dropped += 1
            return None
        try:
            report = msgspec.json.decode(payload, type=ClientReport)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            self.dropped += 1
            return None
        self.dropped += max(0, len(report.topics) - REPORTED_MAX)
        for topic, counters in islice(report.topics.items(), REPORTED_MAX):
            known = self._topics.get(topic)
            full = known is None and len(self._topics) >= TOPICS_MAX
            if full or not counters.plausible or not is_topic(topic.encode("utf-8", "surrogatepass")):
                self.dropped += 1
                continue
            self._topics[topic] = known.merged(counters) if known is not None else counters
        return report

    def measure(self, figures: Figures, now_s: float, wall_offset_s: float) -> Report | None:
        """The report since the last measurement; None for the first, which has nothing to compare with."""
        before, self._before = self._before, (now_s, figures)
        if before is None or now_s <= before[0]:
            return None
        seconds = now_s - before[0]

        def rate(now: float, then: float) -> float:
            return max(0.0, now - then) / seconds  # a restarted server counts from zero

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
            memory_max_bytes=figures.memory_max_bytes,
            cpu_share=rate(figures.cpu_s, before[1].cpu_s),
            counted_bytes_per_s=counted / seconds,
            topics=topics,
        )


# --- the log of reports


REPORTS_MAX = 3600  # the server keeps about this many, and drops the oldest: an hour
REPORTS_BYTES_MAX = 64 << 20  # and this many bytes, if all are as long as the newest: 10,000 topics take 1.5 MB
UNANSWERED_BYTES_MAX = 4 << 20  # what one agent keeps to append again; a report of 100 topics has about 15 kB

Fields = tuple[bytes | str | int, ...]


class ReportLog:
    """Appends the reports to a stream on the broker's own server, for the tables of the data cluster.

    Inputs: append, reopened. It writes to the link it is given. A report that was written but not answered when the
    connection broke is appended again. It may then be in the stream twice, which readers detect by its `sequence`. For
    this, unanswered reports are kept up to a limit; then the oldest are dropped.
    """

    def __init__(self, broker: str, agent_id: int) -> None:
        self.dropped = 0  # at the limit, or refused by the server
        self._broker = broker
        self._agent_id = agent_id
        self._appended = 0
        self._unanswered: dict[int, Fields] = {}
        self._unanswered_bytes = 0

    def append(self, link: ServerLink, at_s: float, report: bytes) -> None:
        self._appended += 1
        identity = f"{self._agent_id:016x}-{self._appended}"
        fields = ("broker", self._broker, "at", int(at_s * 1000), "sequence", identity, "report", report)
        self._unanswered[self._appended] = fields
        self._unanswered_bytes += len(report)
        while self._unanswered_bytes > UNANSWERED_BYTES_MAX:
            self._forget(next(iter(self._unanswered)))
            self.dropped += 1
        self._write(link, self._appended, fields)

    def reopened(self, link: ServerLink) -> None:
        """The connection was lost and is back: append the unanswered reports again, as their fate is unknown."""
        for number, fields in list(self._unanswered.items()):
            self._write(link, number, fields)

    def _write(self, link: ServerLink, number: int, fields: Fields) -> None:
        report = fields[-1]
        assert isinstance(report, bytes)
        kept = min(REPORTS_MAX, max(1, REPORTS_BYTES_MAX // max(1, len(report))))
        link.append(REPORT_STREAM, kept, fields, partial(self._answered, number))

    def _answered(self, number: int, appended: bool) -> None:
        if number in self._unanswered:
            self._forget(number)
            self.dropped += not appended

    def _forget(self, number: int) -> None:
        report = self._unanswered.pop(number)[-1]
        assert isinstance(report, bytes)
        self._unanswered_bytes -= len(report)
