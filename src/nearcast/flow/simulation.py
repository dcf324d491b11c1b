"""The flow simulator: a workload, a policy and a cluster of brokers, in steps of time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from nearcast.core.controller.planner import PlanningSettings
from nearcast.core.model.planning import AddBroker, KeepBroker, Policy, Proposal, ProposedChange, RemoveBroker
from nearcast.core.model.settings import NEVER_S
from nearcast.errors import UsageError
from nearcast.flow.brokers import Buffered, Connections, Queues, Service
from nearcast.flow.control import Fleet, Measured, Moves, Observer, Place, Placements
from nearcast.flow.model import ChangeKind, FloatArray, FlowSettings, PlanChange, Rebalancing, Series, Workload
from nearcast.flow.network import Delays, LognormalDelays, Responses
from nearcast.flow.traffic import Layout, TopicTraffic, Work, topic_traffic, work_of

CHECK_S = PlanningSettings().check_s


# --- steering


class Steering:
    """Decides when the policy is asked and what is done with its proposals, like the controller's planner.

    The policy is asked every second, but not while topics move, and not within `wait_s` (T_wait) of the last proposal
    with changes, unless a broker has joined since. A broker to be removed gets no new topics, and is released when it
    carries none: topics with load are moved by the policy, idle ones are forgotten here and go to the ring on their
    next use.
    """

    def __init__(
        self,
        policy: Policy,
        fleet: Fleet,
        placements: Placements,
        moves: Moves,
        observer: Observer,
        settings: FlowSettings,
    ) -> None:
        self._policy = policy
        self._fleet = fleet
        self._placements = placements
        self._moves = moves
        self._observer = observer
        self._settings = settings
        self._known = frozenset(fleet.rows)  # brokers the policy has seen
        self._asked_s = NEVER_S
        self._changed_s = NEVER_S

    def step(self, now_s: float, series: Series) -> None:
        if not self._is_due(now_s):
            return
        snapshot = self._observer.snapshot(now_s, self._fleet, self._known)
        proposal = self._policy.propose(snapshot, self._placements.plan)
        self._asked_s = now_s
        self._known = frozenset(self._fleet.rows)
        if proposal.changes:
            self._changed_s = now_s
            series.rebalancings.append(Rebalancing(now_s, proposal))
            series.changes += self._carry_out(proposal, now_s)

    def _is_due(self, now_s: float) -> bool:
        if self._moves or now_s - self._asked_s < CHECK_S:
            return False
        return now_s - self._changed_s >= self._settings.wait_s or not self._known.issuperset(self._fleet.rows)

    def _carry_out(self, proposal: Proposal, now_s: float) -> list[PlanChange]:
        for place in proposal.placements:
            if place.topic not in self._placements.plan.topics or not self._fleet.rows.keys() >= set(place.brokers):
                raise UsageError(f"policy {proposal.policy} proposes {place}: the plan has no such topic or broker")
        self._moves.begin(proposal.placements, now_s)
        carried_out = (self._change(change, now_s) for change in proposal.changes)
        return [change for change in carried_out if change is not None]

    def _change(self, change: ProposedChange, now_s: float) -> PlanChange | None:
        if isinstance(change, AddBroker):
            self._fleet.rent(change.count, now_s)
        elif isinstance(change, RemoveBroker) and self._fleet.drain(change.broker):
            return PlanChange(at_s=now_s, kind=ChangeKind.DRAINING, broker=change.broker)
        elif isinstance(change, KeepBroker) and change.broker in self._fleet.draining:
            self._fleet.keep(change.broker)
            return PlanChange(at_s=now_s, kind=ChangeKind.KEPT, broker=change.broker)
        return None

    def release_drained(self, now_s: float) -> list[PlanChange]:
        """Release the draining brokers that carry no topics any more."""
        if not self._fleet.draining:
            return []
        loaded, released = self._observer.loaded(), []
        for name in sorted(self._fleet.draining):
            carried = self._placements.layout.on(self._fleet.rows[name])
            idle = ~loaded[carried] & ~self._moves.moving(len(loaded))[carried]
            if idle.any():
                self._placements.forget(carried[idle])
            if idle.all() and not self._moves.involve(name):
                self._fleet.release(name)
                released.append(PlanChange(at_s=now_s, kind=ChangeKind.RELEASED, broker=name))
        return released


# --- simulation


Progress = Callable[[float], None]


class FlowSimulation:
    """A run. One seed gives one series, in every process.

    Each step: brokers join and moves finish; the demand; loads of topics and brokers; queues; response times; then the
    policy, if it is due, sees the same snapshot that a controller would give it. Brokers are named b1, b2, ... in order
    of joining. Without a policy, nothing moves.

    `placements`: where topics are at the start, by name; the others go to the ring on their first use.
    """

    def __init__(
        self,
        workload: Workload,
        policy: Policy | None,
        settings: FlowSettings | None = None,
        delays: Delays | None = None,
        seed: int = 0,
        brokers: int = 1,
        placements: Mapping[str, Place] | None = None,
    ) -> None:
        self._workload = workload
        self._settings = settings or FlowSettings()
        self._delays = delays or LognormalDelays()
        self._rng = np.random.default_rng(np.random.SeedSequence(seed))
        self._fleet = Fleet(brokers, self._settings)
        self._placements = Placements(workload.topics, self._fleet, placements or {})
        self._moves = Moves(self._placements, self._fleet, self._settings)
        self._observer = Observer(workload.topics, self._settings)
        self._queues = Queues(self._settings)
        self._connections = Connections(self._settings)
        self._steering = (
            None
            if policy is None
            else Steering(policy, self._fleet, self._placements, self._moves, self._observer, self._settings)
        )
        self._series = Series(seed=seed, policy=policy.name if policy else "none", step_s=self._settings.step_s)

    def run(self, seconds: float, progress: Progress | None = None) -> Series:
        """Continue for this many simulated seconds. `progress` gets the total so far."""
        for _ in range(round(seconds / self._settings.step_s)):
            at_s = len(self._series.at_s) * self._settings.step_s
            self._step(at_s)
            if progress is not None:
                progress(at_s + self._settings.step_s)
        return self._series

    def _step(self, at_s: float) -> None:
        settings, series = self._settings, self._series
        for name in self._fleet.joined(at_s):
            series.changes.append(PlanChange(at_s=at_s, kind=ChangeKind.JOINED, broker=name))
        series.changes += self._moves.finish(at_s)
        demand = self._workload.demand(at_s)
        traffic = topic_traffic(demand, len(self._workload.topics), settings)
        self._placements.first_use(traffic.loaded)
        layout, rows = self._placements.layout, len(self._fleet.names)
        work = work_of(traffic, layout, rows, settings)
        computed = self._queues.compute(work)
        buffered = self._connections.step(demand, traffic, layout, computed.sent_share, at_s)
        extra_bytes_per_s = buffered.broker_bytes_per_s + self._moves.bytes_per_s(traffic, rows)
        service = self._queues.send(work, computed, extra_bytes_per_s)
        responses = Responses(layout, traffic, work, service, buffered.topic_wait_s, settings)
        times = responses.times(demand, self._delays, self._rng)
        measured = _measure(traffic, layout, work, service, buffered, extra_bytes_per_s)
        self._observer.add(measured)
        self._record_load(at_s, work, service, buffered, measured)
        series.clients.append(demand.clients)
        series.response_s.append(times.mean_s)
        series.response_p99_s.append(times.p99_s)
        if self._steering is not None:
            self._steering.step(at_s, series)
            series.changes += self._steering.release_drained(at_s)

    def _record_load(self, at_s: float, work: Work, service: Service, buffered: Buffered, measured: Measured) -> None:
        series, rows = self._series, list(self._fleet.rows.values())
        load_ratio = measured.output_bytes_per_s[rows] / self._settings.capacity_bytes_per_s
        series.at_s.append(at_s)
        series.publications_per_s.append(float(measured.topics[1].sum()))
        series.deliveries_per_s.append(float(measured.topics[3].sum()))
        series.connections_dropped.append(buffered.dropped)
        series.lost_per_s.append(float(work.deliveries_per_s @ service.lost_share) + buffered.lost_per_s)
        series.brokers.append(len(rows))
        series.load_ratio_mean.append(float(load_ratio.mean()))
        series.load_ratio_max.append(float(load_ratio.max()))
        series.cpu_max.append(float(work.cpu[rows].max()))
        series.topics_moving.append(len(self._moves))


def _measure(
    traffic: TopicTraffic,
    layout: Layout,
    work: Work,
    service: Service,
    buffered: Buffered,
    extra_bytes_per_s: FloatArray,
) -> Measured:
    """What agents would report: what was sent, not what was requested."""
    sent_per_s = layout.per_topic(work.slot_deliveries_per_s * service.sent_share[layout.slot_broker])
    size = traffic.bytes_per_delivery
    output_bytes_per_s = np.maximum(sent_per_s * size + buffered.topic_bytes_per_s, 0.0)
    copies = np.where(layout.subscriber_share < 1, layout.count, 1)  # all_publishers: each publication goes to all
    topics = np.stack(
        [
            traffic.publishers,
            traffic.publications_per_s,
            traffic.subscribers,
            output_bytes_per_s / size,
            traffic.publications_per_s * size * copies,
            output_bytes_per_s,
        ]
    )
    output = np.maximum(work.bytes_per_s + extra_bytes_per_s, 0.0) * service.sent_share
    return Measured(topics, output, work.cpu, work.subscribers)
