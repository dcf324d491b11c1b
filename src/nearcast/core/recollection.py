"""The recollection: what this broker's server knows of the cluster, for a leader whose store has lost its data.

The membership, and all records, read in one scan and answered batch after batch. First uses are left out: the journal
does not need them.
"""

from __future__ import annotations

from collections.abc import Callable

from nearcast.core import bus
from nearcast.core.backend import AgentLink
from nearcast.core.collection import Scanned
from nearcast.core.membership import Membership, read_membership
from nearcast.core.record import Record


class Recollection:
    def __init__(self, broker: str, answer: Callable[[bus.Answer], None]) -> None:
        self._broker = broker
        self._answer = answer
        self._scanning: bus.Recall | None = None  # the newest order that waits for a scan
        self._scanned: Scanned | None = None

    def clear(self) -> None:
        """A scan ends with its connection to the server."""
        self._scanning = self._scanned = None

    def order(self, order: bus.Recall, link: AgentLink) -> None:
        if order.after and self._scanned is not None:
            self._send(order, self._scanned, None)
            return
        under_way, self._scanning = self._scanning is not None, order
        if not under_way:
            self._scan(link)

    def _scan(self, link: AgentLink) -> None:
        found: list[Membership | None] = []

        def read(document: bytes | None, now_s: float) -> None:
            found.append(read_membership(document))

        def scanned(records: dict[bytes, Record], now_s: float) -> None:
            order, self._scanning = self._scanning, None
            if order is not None:
                self._scanned = Scanned(records)
                self._send(order, self._scanned, found[0])

        link.read_members(read)
        link.find_records(lambda topic: True, scanned)

    def _send(self, order: bus.Recall, scanned: Scanned, membership: Membership | None) -> None:
        batch, more = scanned.batch(order.after)
        if not more:
            self._scanned = None
        records = {topic: scanned.records[topic] for topic in batch}
        self._answer(bus.Answer(self._broker, order.order, records=records, more=more, membership=membership))
