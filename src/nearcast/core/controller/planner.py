"""The planner: asks the policy when it is time, and carries out what it proposes.

`LoadWindow` keeps the reports of the last seconds, and `PlanningInput` is what a policy may know of them. `Planner`
asks, and `ProposalExecutor` carries out the answer.

The policy runs outside the machine, because a plan for many topics takes a while: `Ask` is an effect, and its answer an
input like any other (`effects.py`). A proposal is applied as a whole or not at all, and every change is written down
with its reason.

The policy must not judge on partial data. It is asked only when every broker has reported a whole second since topics
last moved. A new leader has heard nothing yet, so it waits T_wait first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.model.counters import TopicCounters
from nearcast.core.model.journal import BrokerEntry, BrokerState, Pace, TopicEntry
from nearcast.core.model.placement import Plan, single
from nearcast.core.model.planning import (
    AddBroker,
    BrokerLoad,
    KeepBroker,
    PlaceTopic,
    Policy,
    Proposal,
    ProposedChange,
    RemoveBroker,
    Snapshot,
    TopicLoad,
)
from nearcast.core.model.settings import NEVER_S
from nearcast.core.wire import bus
from nearcast.core.wire.bus import Report
from nearcast.core.wire.frames import PUSH_BYTES
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.core.controller.departures import Departures, Provisioning
    from nearcast.core.controller.effects import Questions
    from nearcast.core.controller.moves import Moves
    from nearcast.core.controller.office import Office, Roster
    from nearcast.core.controller.requests import Requests


# --- the load window and the planning input


WINDOW_S = 5.0  # long enough to smooth out that clients' and agents' seconds differ, short enough to follow a crowd

Windows = Mapping[str, tuple[Report, ...]]  # broker -> its reports of the last seconds


class LoadWindow:
    """Every broker's reports of the last seconds, from which topic loads are computed.

    Clients count what they publish and receive, and each reports to the agent of one broker it uses. So the sum over
    all reports is a topic's whole traffic, whatever its mode.
    """

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._reports: dict[str, deque[tuple[float, Report]]] = {}

    def add(self, report: Report, now_s: float) -> None:
        kept = self._reports.setdefault(report.broker, deque())
        kept.append((now_s, report))
        while kept[0][0] < now_s - self._window_s:
            kept.popleft()

    def latest(self, broker: str) -> Report | None:
        kept = self._reports.get(broker)
        return kept[-1][1] if kept else None

    def window(self, broker: str, since_s: float = NEVER_S) -> tuple[Report, ...]:
        """The reports that were heard since then."""
        return tuple(report for heard_s, report in self._reports.get(broker, ()) if heard_s >= since_s)

    def mentions(self, broker: str, topic: str) -> bool:
        """Whether a broker has reported load of a topic."""
        return any(topic in report.topics for _, report in self._reports.get(broker, ()))


def output_bytes_per_s(reports: tuple[Report, ...]) -> float:
    """The mean of one broker's window."""
    seconds = sum(report.seconds for report in reports)
    return sum(report.output_bytes_per_s * report.seconds for report in reports) / seconds if seconds else 0.0


def topic_loads(windows: Windows) -> tuple[dict[str, TopicLoad], dict[str, str]]:
    """The load of every reported topic, and the broker that reports most of it."""
    sums: dict[str, list[float]] = {}
    busiest: dict[str, tuple[float, str]] = {}
    for broker, reports in windows.items():
        for topic, figures in _means(reports).items():
            traffic = figures[4] + figures[5]
            known = sums.get(topic)
            if known is None:  # most topics are reported by one broker
                sums[topic] = figures
                busiest[topic] = (traffic, broker)
                continue
            sums[topic] = [one + other for one, other in zip(known, figures, strict=True)]
            if traffic > busiest[topic][0]:
                busiest[topic] = (traffic, broker)
    loads = {topic: TopicLoad(*figures) for topic, figures in sums.items()}
    return loads, {topic: broker for topic, (_, broker) in busiest.items()}


def _means(reports: tuple[Report, ...]) -> dict[str, list[float]]:
    """Means per second of one broker's window, topic by topic, in the order of TopicLoad's fields."""
    seconds = sum(report.seconds for report in reports)
    counted: dict[str, list[TopicCounters]] = {}
    for report in reports:
        for topic, counters in report.topics.items():
            counted.setdefault(topic, []).append(counters)
    return {topic: _mean(counters, seconds) for topic, counters in counted.items()}


def _mean(counters: list[TopicCounters], seconds: float) -> list[float]:
    publishers = published = subscribers = received = published_bytes = received_bytes = 0
    for one in counters:
        publishers += one.publishers
        published += one.published
        subscribers += one.subscribers
        received += one.received
        published_bytes += one.published_bytes
        received_bytes += one.received_bytes
    sent_bytes = received_bytes + received * PUSH_BYTES
    return [
        publishers / seconds,
        published / seconds,
        subscribers / seconds,
        received / seconds,
        published_bytes / seconds,
        sent_bytes / seconds,
    ]


# --- planning input


class PlanningInput(msgspec.Struct, frozen=True, kw_only=True):
    """Everything the controller knows that a policy may need, at one moment.

    Taking it only copies references, because that happens on the controller's loop. The slow part, adding up the
    reports, is done where the policy runs.
    """

    at_s: float
    version: int  # of the plan
    members: int  # version of the membership
    brokers: Mapping[str, BrokerEntry]  # those that carry topics
    windows: Windows
    topics: Mapping[str, TopicEntry]  # the planned ones
    fresh: frozenset[str]  # brokers that joined after the last change of the plan
    capacity_bytes_per_s: float  # of brokers that have not reported theirs
    spare: int = 0
    coming: int = 0

    def snapshot(self) -> tuple[Snapshot, Plan]:
        """What policies read. A topic no plan names is assumed to live where most of its traffic is reported."""
        loads, reporters = topic_loads(self.windows)
        placements = {
            topic: entry.placement if (entry := self.topics.get(topic)) else single(self.members, broker, self.members)
            for topic, broker in reporters.items()
        }
        brokers = {name: self._broker(name, entry) for name, entry in self.brokers.items()}
        return Snapshot(self.at_s, brokers, loads, self.spare, self.coming), Plan(self.version, placements)

    def _broker(self, name: str, entry: BrokerEntry) -> BrokerLoad:
        reports = self.windows.get(name, ())
        leaving = entry.state is BrokerState.LEAVING
        return BrokerLoad(
            capacity_bytes_per_s=entry.capacity_bytes_per_s or self.capacity_bytes_per_s,
            output_bytes_per_s=output_bytes_per_s(reports),
            cpu_share=reports[-1].cpu_share if reports else 0.0,
            connections=reports[-1].connections if reports else 0,
            site=entry.site,
            draining=leaving,
            removable=entry.by_policy if leaving else entry.rented,
            fresh=name in self.fresh,
        )


# --- the planner


REPORT_S = 1.0  # the time a report covers


class PlanningSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How often a policy may change the plan, and how far the cluster may grow."""

    check_s: float = 1.0  # between two looks at the load
    wait_s: float = 10.0  # T_wait (Dynamoth III.B): after a change, let the load settle before the next one
    brokers_max: int = 0  # no more are rented when there are this many; 0: none are rented
    capacity_bytes_per_s: float = 125e6  # of brokers that have not reported theirs: one gigabit per second
    policy: Policy | None = None  # None: no policy is asked

    def __post_init__(self) -> None:
        if self.check_s <= 0 or self.wait_s < 0 or self.capacity_bytes_per_s <= 0 or self.brokers_max < 0:
            raise UsageError("planning needs check_s > 0, wait_s >= 0, capacity_bytes_per_s > 0 and brokers_max >= 0")


class Proposing:
    """A policy as a decider."""

    def __init__(self, policy: Policy) -> None:
        self.name = f"policy {policy.name}"
        self._policy = policy

    def decide(self, view: PlanningInput) -> Proposal:
        return self._policy.propose(*view.snapshot())


class ProposalExecutor:
    """Carries out proposals, each whole or not at all."""

    def __init__(
        self, term: int, moves: Moves, requests: Requests, departures: Departures, provisioning: Provisioning
    ) -> None:
        self._moves = moves
        self._requests = requests
        self._departures = departures
        self._provisioning = provisioning
        self._placed = term << 32  # numbers of requests: unique across leaders

    @property
    def busy(self) -> bool:
        """Whether topics are moving, or about to move."""
        return len(self._moves) > 0 or len(self._requests) > 0

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
        if placements:
            wanted = {change.topic: (change.mode, change.brokers) for change in placements}
            self._placed += 1
            request = bus.MoveTopics(f".{self._placed}", wanted, Pace.LAZY if len(wanted) > 1 else Pace.EAGER)
            self._requests.heard(request, now_s)

    def change(self, change: ProposedChange) -> None:
        if isinstance(change, AddBroker):
            for _ in range(change.count):
                self._provisioning.rent()
        elif isinstance(change, RemoveBroker):
            self._departures.begin(change.broker, by_policy=True)
        elif isinstance(change, KeepBroker):
            self._departures.cancel(change.broker, by_policy=True)


class Planner:
    """Decides when the policy is asked, and passes its proposals on to `ProposalExecutor`."""

    def __init__(
        self,
        office: Office,
        roster: Roster,
        load: LoadWindow,
        questions: Questions,
        executor: ProposalExecutor,
        planning: PlanningSettings | None,
        now_s: float,
    ) -> None:
        self._office = office
        self._roster = roster
        self._load = load
        self._questions = questions
        self._executor = executor
        self._planning = planning
        self._asking = False  # the policy, which has not answered yet
        self._checked_s = NEVER_S
        self._changed_s = now_s
        self._moved_s = now_s  # when topics were last seen moving
        self._known: frozenset[str] | None = None  # brokers that the policy has seen
        self._shown: frozenset[str] = frozenset()  # brokers of the open question
        self._last_problem = ""

    # --- asking

    def tick(self, now_s: float) -> None:
        planning = self._planning
        if planning is None or planning.policy is None:
            return
        if self._executor.busy:
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
        self._asking, self._shown = True, carriers
        self._questions.ask(Proposing(planning.policy), self._view(planning, now_s), self._proposed)

    def _reports(self, broker: str) -> tuple[bus.Report, ...]:
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
            capacity_bytes_per_s=planning.capacity_bytes_per_s,
            spare=max(0, planning.brokers_max - coming - len(carrying)),
            coming=coming,
        )

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
        if not proposal.changes:
            return
        self._changed_s = now_s
        refused = self._executor.problem(proposal)
        if refused:
            self._office.decided(f"{proposal.policy}: a proposal was refused as a whole: {refused}", now_s)
            return
        self._executor.carry_out(proposal, now_s)
        for change in proposal.changes:
            self._office.decided(f"{proposal.policy}: {describe(change)}", now_s)


def describe(change: ProposedChange) -> str:
    """One change with its reason, for people."""
    if isinstance(change, PlaceTopic):
        return f"{change.topic} -> {change.mode} on {', '.join(change.brokers)} ({change.reason})"
    if isinstance(change, AddBroker):
        return f"add {change.count} broker{'s' if change.count > 1 else ''} ({change.reason})"
    verb = "remove" if isinstance(change, RemoveBroker) else "keep"
    return f"{verb} {change.broker} ({change.reason})"
