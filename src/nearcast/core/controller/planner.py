"""The planner: asks the policy when it is time, and carries out what it proposes.

`Planner` asks, and `ProposalExecutor` carries out the answer. What a policy may know is in planning_input.py.

The policy runs outside the machine, because a plan for many topics takes a while: `Ask` is an effect, and its answer an
input like any other (`effects.py`). A proposal is applied as a whole or not at all, and every change is written down
with its reason.

The policy must not judge on partial data. It is asked only when every broker has reported a whole second since topics
last moved. A new leader has heard nothing yet, so it waits T_wait first. A policy that judges each topic by itself need
not wait for the others: a topic that moves, has just moved, or whose clients still measure where it could move to, is
shown to it as settling.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nearcast.core.controller.planning_input import LoadWindow, PlanningInput
from nearcast.core.controller.restless import Restless
from nearcast.core.model.journal import BrokerState, Pace
from nearcast.core.model.planning import (
    AddBroker,
    ExplainingPolicy,
    Explanation,
    KeepBroker,
    LocatingPolicy,
    PlaceTopic,
    Policy,
    Proposal,
    ProposedChange,
    RemoveBroker,
)
from nearcast.core.model.reports import Report
from nearcast.core.model.settings import NEVER_S
from nearcast.core.wire import bus
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.core.controller.departures import Departures, Provisioning
    from nearcast.core.controller.distances import Distances
    from nearcast.core.controller.effects import Questions
    from nearcast.core.controller.moves import Moves
    from nearcast.core.controller.office import Office, Roster
    from nearcast.core.controller.requests import Requests

OUTCOME_S = 60.0  # how long an outcome is waited for
REPORT_S = 1.0  # the time a report covers


class PlanningSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How often a policy may change the plan, and how far the cluster may grow."""

    check_s: float = 1.0  # between two looks at the load
    wait_s: float = 10.0  # T_wait (Dynamoth III.B): after a change, let the load settle before the next one
    per_topic: bool = False  # the policy judges each topic by itself, and need not wait for the others
    topic_wait_s: float = 5.0  # for such a policy: after a topic has moved, leave it alone
    brokers_max: int = 0  # no more are rented when there are this many; 0: none are rented
    capacity_bytes_per_s: float = 125e6  # of brokers that have not reported theirs: one gigabit per second
    policy: Policy | None = None  # None: no policy is asked

    def __post_init__(self) -> None:
        waits_s = min(self.wait_s, self.topic_wait_s)
        if self.check_s <= 0 or waits_s < 0 or self.capacity_bytes_per_s <= 0 or self.brokers_max < 0:
            raise UsageError(
                "planning needs check_s > 0, wait_s >= 0, topic_wait_s >= 0, capacity_bytes_per_s > 0 and "
                "brokers_max >= 0"
            )

    @property
    def centroids(self) -> bool:
        """Whether the policy wants them in reports."""
        return isinstance(self.policy, LocatingPolicy) and self.policy.wants_centroids


class Proposing:
    """A policy as a decider."""

    def __init__(self, policy: Policy) -> None:
        self.name = f"policy {policy.name}"
        self._policy = policy

    def decide(self, view: PlanningInput) -> Proposal:
        return self._policy.propose(*view.snapshot())


class Explaining:
    """A policy that explains one topic, as a decider. It decides on words if it cannot."""

    def __init__(self, policy: ExplainingPolicy, topic: str) -> None:
        self.name = f"policy {policy.name}"
        self._policy = policy
        self._topic = topic

    def decide(self, view: PlanningInput) -> Explanation | str:
        try:
            return self._policy.explain(*view.snapshot(), self._topic)
        except UsageError as error:
            return str(error)


class ProposalExecutor:
    """Carries out proposals, each whole or not at all.

    `apart`: topics were judged one by one. Then those whose directory does not answer hold up no others.
    """

    def __init__(
        self,
        term: int,
        moves: Moves,
        requests: Requests,
        departures: Departures,
        provisioning: Provisioning,
        *,
        apart: bool = False,
    ) -> None:
        self._apart = apart
        self._moves = moves
        self._requests = requests
        self._departures = departures
        self._provisioning = provisioning
        self._placed = term << 32  # numbers of requests: unique across leaders

    @property
    def busy(self) -> bool:
        """Whether topics are moving, or about to move."""
        return len(self._moves) > 0 or len(self._requests) > 0

    @property
    def placing(self) -> frozenset[str]:
        """Topics that are to be moved, as soon as it is known where they are."""
        return self._requests.placing

    def problem(self, proposal: Proposal) -> str:
        """Why the proposal cannot be carried out now, in words; empty if all of it can."""
        placements = {change.topic: (change.mode, change.brokers) for change in proposal.placements}
        found = [self._requests.problem(placements)]
        removed = {change.broker for change in proposal.changes if isinstance(change, RemoveBroker)}
        for change in proposal.changes:
            if isinstance(change, RemoveBroker):
                found.append(self._departures.problem(change.broker, removed))
            elif isinstance(change, KeepBroker):
                found.append(self._departures.problem_of_staying(change.broker))
        return "; ".join(filter(None, found))

    def carry_out(self, proposal: Proposal, now_s: float) -> None:
        """Do all of a proposal that has no problem."""
        self._place(proposal.placements, now_s)
        for change in proposal.changes:
            self.change(change)

    def _place(self, placements: list[PlaceTopic], now_s: float) -> None:
        groups: dict[str, bus.Placements] = {}
        for change in placements:
            waits_for = self._requests.waits_for(change.topic) if self._apart else ""
            groups.setdefault(waits_for, {})[change.topic] = (change.mode, change.brokers)
        for wanted in groups.values():
            self._placed += 1
            request = bus.MoveTopics(f".{self._placed}", wanted, Pace.LAZY if len(placements) > 1 else Pace.EAGER)
            self._requests.heard(request, now_s)

    def change(self, change: ProposedChange) -> None:
        if isinstance(change, AddBroker):
            for _ in range(change.count):
                self._provisioning.rent()
        elif isinstance(change, RemoveBroker):
            self._departures.begin(change.broker, by_policy=True)
        elif isinstance(change, KeepBroker):
            self._departures.cancel(change.broker, by_policy=True)


class Outcomes:
    """Says how far clients are from a topic's new broker, once they have measured it, beside what was predicted."""

    def __init__(self, office: Office, distances: Distances) -> None:
        self._office = office
        self._distances = distances
        self._expected: dict[str, tuple[PlaceTopic, float]] = {}  # by topic: what was proposed, and when

    def expect(self, change: PlaceTopic, now_s: float) -> None:
        if change.predicted_s is not None:
            self._expected[change.topic] = (change, now_s)

    def tick(self, now_s: float) -> None:
        for topic, (change, since_s) in list(self._expected.items()):
            found = self._distances.of(topic)
            if found is not None and found.now.broker in change.brokers:
                assert change.predicted_s is not None
                self._office.decided(
                    f"{topic} is on {found.now.broker}: worst {found.now.worst_s * 1e3:.1f} ms, 90 % within "
                    f"{found.now.p90_s * 1e3:.1f} ms; predicted {change.predicted_s * 1e3:.1f} ms",
                    now_s,
                )
            if now_s - since_s > OUTCOME_S or (found is not None and found.now.broker in change.brokers):
                del self._expected[topic]


class Planner:
    """Decides when the policy is asked, and passes its proposals on to `ProposalExecutor`."""

    def __init__(
        self,
        office: Office,
        roster: Roster,
        load: LoadWindow,
        distances: Distances,
        questions: Questions,
        executor: ProposalExecutor,
        planning: PlanningSettings | None,
        now_s: float,
    ) -> None:
        self._office = office
        self._roster = roster
        self._load = load
        self._distances = distances
        self._questions = questions
        self._executor = executor
        self._planning = planning
        self._asking = False  # the policy, which has not answered yet
        self._checked_s = NEVER_S
        self._changed_s = now_s
        self._moved_s = now_s  # when topics were last seen moving
        self._settling: dict[str, float] = {}  # topics that moved by the policy, and until when they are left alone
        self._restless = Restless()
        self._outcomes = Outcomes(office, distances)
        self._known: frozenset[str] | None = None  # brokers that the policy has seen
        self._shown: frozenset[str] = frozenset()  # brokers of the open question
        self._last_problem = ""

    # --- asking

    def tick(self, now_s: float) -> None:
        planning = self._planning
        if planning is None or planning.policy is None:
            return
        if self._executor.busy and not planning.per_topic:
            self._moved_s = now_s
            return
        if self._asking or now_s - self._checked_s < planning.check_s:
            return
        carriers = self._roster.carriers()
        if self._known is None:
            self._known = carriers
        waits = now_s - self._changed_s < planning.wait_s and carriers <= self._known
        if waits or not carriers or not all(self._reports(name) for name in carriers):
            return
        self._checked_s = now_s
        self._settle(planning, now_s)
        self._asking, self._shown = True, carriers
        self._questions.ask(Proposing(planning.policy), self._view(planning, now_s), self._proposed)

    def _settle(self, planning: PlanningSettings, now_s: float) -> None:
        """A topic is left alone while it moves, and a while longer."""
        topics = self._office.journal.topics
        for topic, until_s in list(self._settling.items()):
            entry = topics.get(topic)
            if entry is not None and entry.move is not None:
                self._settling[topic] = now_s + planning.topic_wait_s
            elif until_s <= now_s:
                del self._settling[topic]
        self._restless.tick(now_s)
        self._outcomes.tick(now_s)

    def _reports(self, broker: str) -> tuple[Report, ...]:
        """The reports of seconds in which nothing moved."""
        return self._load.window(broker, self._moved_s + REPORT_S)

    def _view(self, planning: PlanningSettings, now_s: float) -> PlanningInput:
        journal = self._office.journal
        states = [entry.state for entry in journal.brokers.values()]
        coming = sum(state in (BrokerState.RENTED, BrokerState.JOINING) for state in states)
        carrying = {name: entry for name, entry in journal.brokers.items() if self._roster.carries(name)}
        return PlanningInput(
            at_s=now_s,
            version=self._office.ledger.version,
            members=journal.membership.version,
            brokers=carrying,
            windows={name: self._reports(name) for name in carrying},
            topics=dict(journal.topics),
            fresh=self._roster.carriers() - (self._known or frozenset()),
            distances=self._distances.all(),
            coordinates=dict(self._distances.coordinates),
            settling=frozenset(self._settling) | self._executor.placing | self._distances.measuring(),
            restless=self._restless.topics(now_s),
            membership=journal.membership,
            capacity_bytes_per_s=planning.capacity_bytes_per_s,
            spare=max(0, planning.brokers_max - coming - len(carrying)),
            coming=coming,
        )

    def explain(self, message: bus.ExplainTopic, now_s: float) -> None:
        """Somebody wants to know why a topic is where it is."""
        planning = self._planning
        policy = planning.policy if planning is not None else None
        if planning is None or not isinstance(policy, ExplainingPolicy):
            name = policy.name if policy is not None else "none"
            problem = f"the policy is {name}, which explains nothing: start the controllers with --policy epulsar"
            self._office.reply(self._office.state(message.request, problem))
            return

        def explained(found: Explanation | str | None, at_s: float) -> None:
            if isinstance(found, Explanation):
                state = msgspec.structs.replace(self._office.state(message.request), explanation=found)
            else:
                state = self._office.state(message.request, found or "the policy failed: see the controller's log")
            self._office.reply(state)

        self._questions.ask(Explaining(policy, message.topic), self._view(planning, now_s), explained)

    # --- answers

    def _proposed(self, proposal: Proposal | None, now_s: float) -> None:
        """The policy's answer; None if it failed."""
        self._asking = False
        if proposal is None:
            return
        if proposal.problem and proposal.problem != self._last_problem:
            self._office.decided(f"{proposal.policy}: {proposal.problem}", now_s)
        self._last_problem = proposal.problem
        self._known = self._shown  # a broker that has joined since the question is still fresh
        planning = self._planning
        if not proposal.changes or planning is None or planning.policy is None:
            return
        if not planning.per_topic:
            self._changed_s = now_s
        refused = self._executor.problem(proposal)
        if refused:
            self._office.decided(f"{proposal.policy}: a proposal was refused as a whole: {refused}", now_s)
            return
        self._executor.carry_out(proposal, now_s)
        for change in proposal.changes:
            self._office.decided(f"{proposal.policy}: {describe(change)}", now_s)
            if isinstance(change, PlaceTopic):
                self._settling[change.topic] = now_s + planning.topic_wait_s
                self._outcomes.expect(change, now_s)
                if self._restless.placed(change, now_s):
                    self._office.decided(f"{change.topic} keeps moving for little: from now on only for more", now_s)


def describe(change: ProposedChange) -> str:
    """One change with its reason, for people."""
    if isinstance(change, PlaceTopic):
        return f"{change.topic} -> {change.mode} on {', '.join(change.brokers)} ({change.reason})"
    if isinstance(change, AddBroker):
        return f"add {change.count} broker{'s' if change.count > 1 else ''} ({change.reason})"
    verb = "remove" if isinstance(change, RemoveBroker) else "keep"
    return f"{verb} {change.broker} ({change.reason})"
