"""A leadership: everything a controller does while it is the leader.

It starts from a journal, and nothing but the journal is left of it. What it must not forget goes through the ledger
first; what it can find out again it keeps in memory. Before it decides anything, it listens: a broker may know more
than the journal if the store has lost data (`core/model/journal.py`).

The leader is an assembly of parts. It hands them what they need, passes messages on to the one concerned, and lets them
work in turn:

    members       which brokers there are, and the ring         moves          topics that are moving
    departures    brokers that are drained and leave            provisioning   brokers that a provider starts and stops
    requests      what people ask for                           planner        what the policy wants
    coordination  which gateway serves which subscriber         logs, replicas   what is kept, and by whom
    bounds        how long messages may take                    distances      how far brokers and clients are

Each is a module of its name, except that provisioning is in departures.py and coordination in subscribers.py.
"""

from __future__ import annotations

from random import Random

import msgspec

from nearcast.core.controller.bounds import SetBounds
from nearcast.core.controller.departures import Departures, Provisioning
from nearcast.core.controller.distances import Distances
from nearcast.core.controller.effects import Questions
from nearcast.core.controller.ledger import Ledger
from nearcast.core.controller.logs import Logs
from nearcast.core.controller.members import Members
from nearcast.core.controller.moves import Moves
from nearcast.core.controller.office import Office, Orders, Roster
from nearcast.core.controller.planner import Planner, PlanningSettings, ProposalExecutor
from nearcast.core.controller.planning_input import LoadWindow
from nearcast.core.controller.replicas import Replicas
from nearcast.core.controller.requests import Requests
from nearcast.core.controller.subscribers import Coordination, CoordinationSettings
from nearcast.core.model.journal import Journal, Known, lost
from nearcast.core.model.reports import Report
from nearcast.core.model.settings import DEFAULT_TIMING, Timing
from nearcast.core.wire import bus


class LeaderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a leader."""

    timing: Timing = DEFAULT_TIMING
    planning: PlanningSettings | None = None  # None: no automatic planning
    coordinating: CoordinationSettings = CoordinationSettings()
    dice: Random


class Leader:
    """One leadership, from its first journal to its end."""

    def __init__(
        self,
        ledger: Ledger,
        *,
        leader: str,
        store_url: str,
        settings: LeaderSettings,
        orders: Orders | None = None,  # of this term, if orders have already been given
        wall_offset_s: float = 0.0,
        now_s: float,
    ) -> None:
        self.ledger = ledger
        self._read_version = ledger.version
        self._listening = True
        self.office = office = Office(
            ledger,
            leader=leader,
            store_url=store_url,
            cluster=ledger.journal.membership.cluster or f"{settings.dice.getrandbits(64):016x}",
            timing=settings.timing,
            orders=orders,
            wall_offset_s=wall_offset_s,
        )
        self._planning = planning = settings.planning
        self._load = LoadWindow()
        self.questions = Questions(ledger.term)
        roster = Roster(ledger)
        self.moves = Moves(office, roster, now_s)
        self.members = Members(office, roster, self.moves, now_s)
        self.departures = Departures(office, roster, self.members, self.moves, self._looks_after)
        self.provisioning = Provisioning(office, self.members)
        self.distances = Distances(office, roster, self.members, centroids=planning is not None and planning.centroids)
        self.bounds = SetBounds(office, self.members)
        self.requests = Requests(office, roster, self.members, self.moves, self.departures, self._load, self.distances)
        self.logs = Logs(office, roster, self.members)
        self.replicas = Replicas(office, self.members)
        self.executor = ProposalExecutor(
            ledger.term,
            self.moves,
            self.requests,
            self.departures,
            self.provisioning,
            apart=planning is not None and planning.per_topic,
        )
        self.planner = Planner(
            office, roster, self._load, self.distances, self.questions, self.executor, settings.planning, now_s=now_s
        )
        self.coordination = Coordination(
            office, roster, self.distances, self.questions, settings.coordinating, settings.dice, now_s=now_s
        )

    @property
    def journal(self) -> Journal:
        return self.ledger.journal

    @property
    def term(self) -> int:
        return self.ledger.term

    @property
    def known(self) -> Known:
        """What anyone may know about this cluster by now."""
        membership = self.journal.membership
        return Known(membership.cluster, membership.version, self.term, self.office.position, self.office.store_url)

    def lost(self, known: Known) -> bool:
        """Whether the store had lost something when we read the journal, or has now."""
        return lost(known, self.journal, self.ledger.version if known.term == self.term else self._read_version)

    def listens(self, now_s: float) -> bool:
        """Whether a broker that may know more than the journal, or may still have its lease, has not been heard yet."""
        self._listening = self._listening and not self.members.all_heard(now_s)
        return self._listening

    def _looks_after(self, broker: str, topic: str) -> bool:
        """Whether the policy decides where this topic of a broker goes: it sees load on it."""
        return self._planning is not None and self._load.mentions(broker, topic)

    # --- inputs

    def heard(self, message: bus.ToController, now_s: float) -> None:
        if isinstance(message, bus.Hello):
            self.members.hello(message, now_s)
        elif isinstance(message, bus.Answer):
            self.office.orders.answered(message, now_s)
        elif isinstance(message, Report):
            if message.broker in self.journal.brokers and message.seconds > 0:  # otherwise it cannot be true
                self._load.add(message, now_s)
                self.distances.heard(message, now_s)
        elif isinstance(message, bus.SetBound):
            self.bounds.heard(message, now_s)
        elif isinstance(message, bus.ExplainTopic):
            self.planner.explain(message, now_s)
        elif isinstance(message, bus.AboutLogs):
            self.logs.heard(message, now_s)
        elif isinstance(message, bus.AbandonPart):
            self.replicas.heard(message, now_s)
        elif isinstance(message, bus.FromGateway | bus.AboutSubscribers):
            self.coordination.heard(message, now_s)
        else:
            self.requests.heard(message, now_s)

    def tick(self, now_s: float) -> None:
        if self.listens(now_s):
            return
        self.members.tick(now_s)
        self.moves.tick(now_s)
        self.departures.tick(now_s)
        self.provisioning.tick(now_s)
        self.requests.tick(now_s)
        self.logs.tick(now_s)
        self.replicas.tick(now_s)
        self.distances.tick(now_s)
        self.bounds.tick(now_s)
        self.planner.tick(now_s)
        self.coordination.tick(now_s)
        self.go_on(now_s)

    def go_on(self, now_s: float) -> None:
        """Continue what an answer or a commit has made possible."""
        if self._listening:
            return
        self.moves.go_on(now_s)
        self._flush_orders()

    def _flush_orders(self) -> None:
        for broker, order in self.office.orders.outgoing:
            agent = self.members.agent_of(broker)
            if agent is not None:  # otherwise it is repeated when the broker has been heard
                self.office.tell(broker, agent, order)
        self.office.orders.outgoing.clear()
