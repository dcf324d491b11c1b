"""Marks: what an agent adds to the parts on its server when topics settle there (PROTOCOL "Logs")."""

from __future__ import annotations

from collections.abc import Sequence

from nearcast.core.model.logs import Log, encode_mark, stream_of, totals_of
from nearcast.core.model.membership import Membership
from nearcast.core.wire import bus
from nearcast.core.wire.backend import Parts


class Marking:
    """The parts that keep the topics of one order to install records."""

    def __init__(self, membership: Membership, broker: str, order: bus.Install) -> None:
        self._broker = broker
        self._order = order
        self._life = membership.life(broker)
        topics = [topic.encode() for topic in order.records]
        logs = membership.logs if self._life else ()
        self._logs: list[Log] = [log for log in logs if any(log.covers(topic) for topic in topics)]

    @property
    def parts(self) -> Parts:
        after, life = self._order.after, self._life
        marks = {stream_of(log, life): encode_mark(after.get(log.key, {}), life) for log in self._logs}
        return Parts(totals_of(life), marks)

    def answer(self, versions: Sequence[int], ends: Sequence[str]) -> bus.Answer:
        """The answer to the order: which versions are there now, and where the parts end."""
        order = self._order
        by_topic = dict(zip(order.records, versions, strict=True))
        by_log = {log.key: end for log, end in zip(self._logs, ends, strict=True) if end}
        return bus.Answer(self._broker, order.order, versions=by_topic, life=self._life, ends=by_log)
