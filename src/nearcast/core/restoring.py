"""Restoring: many records go to one broker outside of any move, batch after batch, each sent until it is answered.

Whoever needs it says so at every tick; what is on its way goes on where it is and does not begin again, so the orders
sent grow with the number of records. If a move has replaced a record meanwhile, the server keeps the newer one.

Which topics of a long journal concern a broker is found out a part at a time: a leader that thinks for longer than its
leadership lasts has lost it, and so has the one after it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from nearcast.core import bus
from nearcast.core.record import Record

if TYPE_CHECKING:
    from nearcast.core.orders import Orders

INSTALL_BATCH = 500  # records in one order: some milliseconds of a server's time
LOOKED_AT = 5_000  # topics looked at in one go: some 20 milliseconds of ours

# All topics that may concern the broker, each with its record if it does.
Wanted = Callable[[], Iterator[tuple[str, Record | None]]]


class _Restore:
    __slots__ = ("at", "batch", "broker", "complete", "topics")

    def __init__(self, broker: str, topics: Iterator[tuple[str, Record | None]]) -> None:
        self.broker = broker
        self.topics = topics
        self.batch: dict[str, Record] = {}  # the next one, or the one on its way
        self.complete = False  # all topics were looked at
        self.at = 0  # how many batches are installed

    def look(self) -> None:
        """Fill the next batch, as far as one go allows."""
        looked = 0
        for topic, record in islice(self.topics, LOOKED_AT):
            looked += 1
            if record is not None:
                self.batch[topic] = record
                if len(self.batch) == INSTALL_BATCH:
                    return
        self.complete = looked < LOOKED_AT


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
        if not restore.batch:
            restore.look()
        if not restore.batch:
            if restore.complete:
                del self._under_way[key]
                then()
            return

        def done(answer: bus.Answer, at_s: float) -> None:
            if self._under_way.get(key) is restore and restore.at == at:
                restore.at, restore.batch = restore.at + 1, {}
                self.drive(key, broker, wanted, then, at_s)

        at = restore.at
        make = partial(bus.Install, term=self._term, records=restore.batch)
        self._orders.need(("restore", key, at), broker, make, done, now_s)

    def forget(self, broker: str) -> None:
        """The broker is gone, or has lost its memory: begin again if anybody still wants it."""
        self._under_way = {key: restore for key, restore in self._under_way.items() if restore.broker != broker}
