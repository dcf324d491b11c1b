"""The flow simulator: a workload, a policy and a cluster of brokers, in steps of time.

Each step: who joins and which moves are done; the demand; loads of topics and brokers; queues; response times; then
the policy, if it is due, sees the same snapshot a controller would give it. One seed gives one series, in every
process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from nearcast.core.proposal import Policy
from nearcast.flow.brokers import Queues, Service
from nearcast.flow.connections import Buffered, Connections
from nearcast.flow.delays import Delays, LognormalDelays
from nearcast.flow.demand import FloatArray, Workload
from nearcast.flow.fleet import Fleet
from nearcast.flow.layout import Layout
from nearcast.flow.moves import Moves
from nearcast.flow.observer import Measured, Observer
from nearcast.flow.placements import Place, Placements
from nearcast.flow.response import Responses
from nearcast.flow.series import ChangeKind, PlanChange, Series
from nearcast.flow.settings import FlowSettings
from nearcast.flow.steering import Steering
from nearcast.flow.traffic import TopicTraffic, Work, topic_traffic, work_of

Progress = Callable[[float], None]


class FlowSimulation:
    """Brokers are named b1, b2, ... in order of joining. Without a policy, nothing moves.

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
        """Run so many simulated seconds on. `progress` is told how many are done in all."""
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
    """What reports would say: sent, not asked for."""
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
