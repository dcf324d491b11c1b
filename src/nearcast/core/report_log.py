"""The log of reports: what agents append to a stream on the store's server, for the tables of the data cluster.

A report that was written but not answered when the connection broke is appended again: it may then be there twice,
and readers tell that by its `sequence`. Reports are kept for that within a limit; the oldest are dropped at it.
"""

from __future__ import annotations

from functools import partial

from nearcast.core.backend import ServerLink
from nearcast.core.store_names import REPORT_STREAM

REPORTS_MAX = 10_000  # the server keeps about so many of all brokers, and drops the oldest: 16 minutes of ten brokers
REPORTS_BYTES_MAX = 256 << 20  # and so much, all as long as the newest: one of 10,000 topics has 1.5 MB
UNANSWERED_BYTES_MAX = 4 << 20  # kept by one agent to be appended again; a report of 100 topics has about 15 kB

Fields = tuple[bytes | str | int, ...]


class ReportLog:
    """Inputs: append, reopened. It writes to the link it is given."""

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
        """The connection was lost and is there again: nobody knows whether the last reports were appended."""
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
