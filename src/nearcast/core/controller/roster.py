"""The roster: what the journal says about brokers, and about the topics that name them."""

from __future__ import annotations

from nearcast.core.controller.ledger import Ledger
from nearcast.core.model.journal import BrokerState, Journal
from nearcast.core.model.membership import ERA, ring_of
from nearcast.core.model.placement import Placement, single

LIVE = (BrokerState.JOINING, BrokerState.MEMBER, BrokerState.LEAVING)  # states of brokers that are expected to answer


class Roster:
    """Answers questions about brokers and placements from the journal."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def _journal(self) -> Journal:
        return self._ledger.journal

    # --- brokers

    def alive(self, broker: str) -> bool:
        """Whether the broker is expected to carry out orders."""
        entry = self._journal.brokers.get(broker)
        return entry is not None and entry.state in LIVE

    def carries(self, broker: str) -> bool:
        """Whether the broker carries the topics that name it. One that joins again has none of its former topics."""
        entry = self._journal.brokers.get(broker)
        return entry is not None and entry.state in (BrokerState.MEMBER, BrokerState.LEAVING)

    def carriers(self) -> frozenset[str]:
        """The brokers that may be given topics."""
        brokers = self._journal.brokers
        return frozenset(name for name, entry in brokers.items() if entry.state is BrokerState.MEMBER)

    def unknown(self, broker: str) -> str:
        """The error text for a broker that does not exist."""
        return f"no broker {broker!r}; the cluster has: {', '.join(sorted(self._journal.brokers)) or 'none'}"

    # --- topics and placements

    def directory(self, topic: str) -> str | None:
        """The topic's directory by the newest ring, closed or open."""
        ring = self._journal.membership.ring
        return ring_of(ring).owner(topic.encode()) if ring else None

    def is_at(self, broker: str, placement: Placement) -> bool:
        """Whether the broker the placement means carries its topics; not one that joined later under the same name."""
        return self.carries(broker) and self._journal.membership.has(broker, placement)

    def whole(self, placement: Placement) -> bool:
        """Whether all brokers of the placement are there."""
        return all(self.is_at(broker, placement) for broker in placement.brokers)

    def may_know_more(self, placement: Placement) -> tuple[str, ...]:
        """The brokers where clients may wait for a move from here that was lost with the store: all, in a new era."""
        if placement.epoch // ERA == self._journal.membership.version // ERA:
            return ()
        return tuple(sorted(self.carriers()))

    def names(self, broker: str) -> bool:
        """Whether a topic still names the broker, now or as its target."""
        return any(
            broker in entry.placement.brokers or (entry.move is not None and broker in entry.move.target.brokers)
            for entry in self._journal.topics.values()
        )

    def refuge(self, topic: str, placement: Placement, epoch: int) -> Placement | None:
        """The same placement without its dead brokers; the directory if none is left."""
        members = self._journal.membership.version
        epoch = self._unused(epoch)
        left = tuple(broker for broker in placement.brokers if self.is_at(broker, placement))
        if len(left) > 1:
            return Placement(epoch, placement.mode, left, members)
        home = left[0] if left else self.directory(topic)
        return single(epoch, home, members) if home is not None else None

    def _unused(self, epoch: int) -> int:
        """This epoch or a later one: dead brokers may know epochs the store has lost, but none above this version."""
        return max(epoch, self._journal.membership.version)
