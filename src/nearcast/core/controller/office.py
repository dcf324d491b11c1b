"""What the parts of a leader share: the office, the orders in flight to agents, and the roster.

A leader is made of parts, each with one job. All of them read the journal, give orders, speak on the bus and write
down what they decide. They do this through the `Office`; what else a part needs from another one is given to it by
name, so each can be tested alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

import msgspec

from nearcast.core.controller.ledger import Ledger
from nearcast.core.model.journal import BrokerState, Journal, Position
from nearcast.core.model.membership import ERA, ring_of
from nearcast.core.model.names import ANSWER_CHANNEL, agent_channel
from nearcast.core.model.placement import Placement, single
from nearcast.core.model.settings import NEVER_S, Timing
from nearcast.core.wire import bus, views

DECISIONS_KEPT = 200
INSTALL_BATCH = 500  # records in one order: a few milliseconds of a server's time
ORDERS_MAX = 10_000  # without an answer; at the limit the oldest is forgotten, and given again if it is still needed

OnAnswer = Callable[[bus.Answer, float], None]


class Orders:
    """Orders in flight to agents, each repeated until it is answered.

    Needs are stated every tick ("install this there"); an order already in flight is not sent twice within the retry
    time. So a lost order, a lost answer and a restarted agent all look the same, and heal the same way.
    """

    def __init__(self, term: int, retry_s: float) -> None:
        self.outgoing: list[tuple[str, bus.Order]] = []
        self._retry_s = retry_s
        self._number = term << 32  # so that an answer to an earlier leader's order matches none of ours
        self._sent_s: dict[Hashable, float] = {}
        self._waiting: dict[int, tuple[Hashable, str, OnAnswer]] = {}

    def need(
        self, key: Hashable, broker: str, make: Callable[[int], bus.Order], on_answer: OnAnswer, now_s: float
    ) -> None:
        """Send the order unless one with the same key was sent a moment ago."""
        if now_s - self._sent_s.get(key, NEVER_S) < self._retry_s:
            return
        self._number += 1
        self._sent_s[key] = now_s
        self._waiting[self._number] = (key, broker, on_answer)
        if len(self._waiting) > ORDERS_MAX:
            key, _, _ = self._waiting.pop(next(iter(self._waiting)))
            self._sent_s.pop(key, None)
        self.outgoing.append((broker, make(self._number)))

    def answered(self, answer: bus.Answer, now_s: float) -> None:
        waiting = self._waiting.pop(answer.order, None)
        if waiting is None or waiting[1] != answer.broker:
            return  # answered twice, or an order of an earlier leader
        key, _, on_answer = waiting
        self._sent_s.pop(key, None)
        on_answer(answer, now_s)


class Office:
    """Held for one term. `notes`, `outbox` and the orders' `outgoing` are for the driver."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        leader: str,
        store_url: str,
        cluster: str,
        timing: Timing,
        orders: Orders | None = None,  # of this term, if orders have already been given
        wall_offset_s: float = 0.0,
    ) -> None:
        self.ledger = ledger
        self.leader = leader
        self.store_url = store_url
        self.cluster = cluster
        self.timing = timing
        self.orders = orders or Orders(ledger.term, timing.retry_s)
        self.notes: list[str] = []  # what happened, for the driver's log
        self.outbox: list[tuple[bytes, bytes]] = []  # (channel, payload) to publish on the bus
        self.decisions: deque[views.Decision] = deque(maxlen=DECISIONS_KEPT)
        self._wall_offset_s = wall_offset_s

    @property
    def journal(self) -> Journal:
        return self.ledger.journal

    @property
    def term(self) -> int:
        return self.ledger.term

    @property
    def position(self) -> Position:
        return self.journal.position(self.ledger.version)

    def log(self, note: str) -> None:
        self.notes.append(note)

    def decided(self, text: str, now_s: float) -> None:
        """Write a decision down, for `nearcast plan decisions` and the log."""
        self.decisions.append(views.Decision(now_s + self._wall_offset_s, text))
        self.log(text)

    # --- the bus

    def tell(self, broker: str, agent: int, message: bus.ToAgent) -> None:
        stamped = msgspec.structs.replace(message, journal=self.position)
        self.publish(agent_channel(broker, agent), stamped)

    def reply(self, answer: bus.State | bus.Assignment) -> None:
        asker, _, _ = answer.request.partition(".")
        self.publish(ANSWER_CHANNEL + asker.encode(), answer)

    def state(self, request: str, problem: str = "") -> bus.State:
        """The head of every answer to a request."""
        return bus.State(request, self.leader, self.term, self.ledger.version, problem)

    def publish(self, channel: bytes, message: bus.FromController) -> None:
        self.outbox.append((channel, bus.encode(message)))


# --- the roster


LIVE = (BrokerState.JOINING, BrokerState.MEMBER, BrokerState.LEAVING)  # states of brokers that are expected to answer


class Roster:
    """Answers questions about brokers and placements from the journal."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.membership_at: dict[str, int] = {}  # version installed at each broker

    @property
    def _journal(self) -> Journal:
        return self._ledger.journal

    # --- brokers

    def informed(self, broker: str) -> bool:
        """Whether the broker has the newest membership."""
        return self.membership_at.get(broker, -1) >= self._journal.membership.version

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
        """This epoch or a later one: the dead may know epochs the store has lost, but none as high as this version."""
        return max(epoch, self._journal.membership.version)
