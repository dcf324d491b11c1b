"""Restoring: many records go to one broker outside of any move, batch after batch, each sent until it is answered.

Whoever needs it says so at every tick; what is on its way goes on where it is and does not begin again, so the orders
sent grow with the number of records. If a move has replaced a record meanwhile, the server keeps the newer one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from nearcast.core import bus
from nearcast.core.record import Record

if TYPE_CHECKING:
    from nearcast.core.orders import Orders

INSTALL_BATCH = 500  # records in one order: some milliseconds of a server's time

Wanted = Callable[[], Mapping[str, Record]]


class _Restore:
    __slots__ = ("at", "broker", "records", "topics")

    def __init__(self, broker: str, records: Mapping[str, Record]) -> None:
        self.broker = broker
        self.records = records
        self.topics = list(records)
        self.at = 0  # how many are installed

    def batch(self) -> dict[str, Record]:
        return {topic: self.records[topic] for topic in self.topics[self.at : self.at + INSTALL_BATCH]}


class Restoring:
    def __init__(self, orders: Orders, term: int) -> None:
        self._orders = orders
        self._term = term
        self._under_way: dict[Hashable, _Restore] = {}

    def drive(self, key: Hashable, broker: str, wanted: Wanted, then: Callable[[], None], now_s: float) -> None:
        """Install what is wanted at the broker, and call `then` when all of it is there."""
        restore = self._under_way.get(key)
        if restore is None:
            restore = self._under_way[key] = _Restore(broker, wanted())
        batch = restore.batch()
        if not batch:
            del self._under_way[key]
            then()
            return

        def done(answer: bus.Answer, at_s: float) -> None:
            if self._under_way.get(key) is restore and restore.at == at:
                restore.at += len(batch)
                self.drive(key, broker, wanted, then, at_s)

        at = restore.at
        make = partial(bus.Install, term=self._term, records=batch)
        self._orders.need(("restore", key, at), broker, make, done, now_s)

    def forget(self, broker: str) -> None:
        """The broker is gone, or has lost its memory: begin again if anybody still wants it."""
        self._under_way = {key: restore for key, restore in self._under_way.items() if restore.broker != broker}
