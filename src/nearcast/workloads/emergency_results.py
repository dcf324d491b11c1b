"""The emergency workload for the flow simulator: which reports match which subscription, and so how many bytes.

Executions come at each multiple of a channel's period and see the reports since the one before; users are where they
are at that moment. A row is as long as its report, and a name and a number longer if it comes with a shelter.
"""

from __future__ import annotations

import numpy as np

from nearcast.flow.demand import BoolArray, FloatArray, IntArray
from nearcast.flow.gateway_world import GatewayWorld, Spans
from nearcast.workloads.emergency import EmergencyWorld
from nearcast.workloads.emergency_channels import (
    EMERGENCY_CHANNELS,
    PLACE_RADIUS_M,
    SHELTER_RADIUS_M,
    USER_RADIUS_M,
    EmergencyChannel,
)
from nearcast.workloads.emergency_city import distance_m
from nearcast.workloads.emergency_reports import KIND_NAMES
from nearcast.workloads.emergency_scenario import Action, Interaction

SHELTER_BYTES = 40  # of a row: "shelter":"shelter 123","capacity":456 and so on
Wanted = tuple[str, tuple[tuple[str, str | float], ...]]  # channel and parameters: a backend subscription


def gateway_world(world: EmergencyWorld, brokers: int) -> GatewayWorld:
    """The scenario with so many brokers. Subscribers are where they were when they first logged in."""
    numbers, spans = _spans(world)
    arrival_s = np.zeros(world.settings.users)
    for event in reversed(world.scenario.events):
        if event.action is Action.LOGIN:
            arrival_s[_number(event.user)] = event.at_s
    positions = np.empty((world.settings.users, 2))
    for user in np.argsort(arrival_s, kind="stable").tolist():
        lats, lons = world.positions(float(arrival_s[user]))
        positions[user] = lats[user], lons[user]
    return GatewayWorld(
        broker_positions=_metric(world, np.stack(world.settings.city.broker_sites(brokers), axis=1)),
        positions=_metric(world, positions),
        arrival_s=arrival_s,
        spans=spans,
        result_bytes=_Results(world).table(list(numbers)),
    )


def _number(user: str) -> int:
    return int(user[1:])


def _metric(world: EmergencyWorld, degrees: FloatArray) -> FloatArray:
    """Degrees of longitude as short as they are there, so that the nearest is the nearest."""
    return degrees * np.array([1.0, np.cos(np.radians(world.settings.city.latitude))])


def _wanted(event: Interaction) -> Wanted:
    return event.channel, tuple(event.parameters.items())


def _spans(world: EmergencyWorld) -> tuple[dict[Wanted, int], Spans]:
    """Backend subscriptions with their numbers, and when each user was online and had which of them."""
    numbers: dict[Wanted, int] = {}
    rows: list[tuple[int, int, int, int]] = []
    end = int(world.settings.seconds)
    online: set[int] = set()
    held: dict[int, dict[int, int]] = {user: {} for user in range(world.settings.users)}  # and since when
    for event in world.scenario.events:
        user, at_s = _number(event.user), int(event.at_s)
        if event.action is Action.LOGIN:
            online.add(user)
            held[user] = dict.fromkeys(held[user], at_s)
        elif event.action is Action.SUBSCRIBE:
            held[user][numbers.setdefault(_wanted(event), len(numbers))] = at_s
        elif event.action is Action.UNSUBSCRIBE:
            number = numbers[_wanted(event)]
            since_s = held[user].pop(number)
            if user in online:
                rows.append((user, number, since_s, at_s))
        else:
            online.remove(user)
            rows += [(user, number, since_s, at_s) for number, since_s in held[user].items()]
    rows += [(user, number, since_s, end) for user in online for number, since_s in held[user].items()]
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return numbers, Spans(*columns)


class _Results:
    def __init__(self, world: EmergencyWorld) -> None:
        self._world = world
        self._reports = world.report_columns
        self._seconds = int(world.settings.seconds)
        reports, shelters = self._reports, world.shelters
        near = distance_m(reports.lat[:, None], reports.lon[:, None], shelters.lat, shelters.lon) < SHELTER_RADIUS_M
        self._plain = reports.size.astype(np.float64)
        self._with_shelters = near.sum(axis=1) * (reports.size + SHELTER_BYTES).astype(np.float64)
        self._of_kind = [reports.kind == kind for kind in range(len(KIND_NAMES))]
        self._seen: dict[int, tuple[IntArray, list[tuple[FloatArray, FloatArray]]]] = {}

    def table(self, wanted: list[Wanted]) -> FloatArray:
        """Bytes, a row per second and a column per backend subscription."""
        channels = {channel.name: channel for channel in EMERGENCY_CHANNELS}
        found = np.zeros((self._seconds, len(wanted)))
        for column, (name, parameters) in enumerate(wanted):
            channel = channels[name]
            rows, _ = self._executions(channel.period_s)
            sizes = self._with_shelters if channel.shelters else self._plain
            matched = self._matching(channel, dict(parameters))
            at_s = (rows[matched] + 1) * channel.period_s
            # Reports after the last execution are for the one that is no longer run.
            in_time = at_s < self._seconds
            np.add.at(found[:, column], at_s[in_time], sizes[matched][in_time])
        return found

    def _executions(self, period_s: int) -> tuple[IntArray, list[tuple[FloatArray, FloatArray]]]:
        """The execution that sees each report, and where users are at each."""
        if period_s not in self._seen:
            rows = (self._reports.at_s // period_s).astype(np.int64)
            count = self._seconds // period_s + 1
            places = [self._world.positions(float((row + 1) * period_s)) for row in range(count)]
            self._seen[period_s] = (rows, places)
        return self._seen[period_s]

    def _matching(self, channel: EmergencyChannel, parameters: dict[str, str | float]) -> BoolArray:
        reports = self._reports
        matched = np.ones(len(reports), dtype=np.bool_)
        if channel.by_kind:
            matched &= self._of_kind[KIND_NAMES.index(str(parameters["kind"]))]
        if channel.by_district:
            matched &= reports.district == self._world.settings.city.districts.index(str(parameters["district"]))
        if channel.by_place:
            place = np.array([parameters["lat"], parameters["lon"]], dtype=np.float64)
            matched &= distance_m(reports.lat, reports.lon, place[:1], place[1:]) < PLACE_RADIUS_M
        if channel.by_user:
            user = _number(str(parameters["user"]))
            rows, places = self._executions(channel.period_s)
            lat, lon = (np.array([place[axis][user] for place in places])[rows] for axis in (0, 1))
            matched &= distance_m(reports.lat, reports.lon, lat, lon) < USER_RADIUS_M
        return matched
