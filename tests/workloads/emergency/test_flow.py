"""The emergency workload for the flow simulator, compared with a plain loop over reports and subscriptions."""

from __future__ import annotations

import csv
import json
import math
from collections import defaultdict

import numpy as np

from nearcast.workloads.emergency.flow import SHELTER_BYTES, gateway_world
from nearcast.workloads.emergency.scenario import (
    EMERGENCY_CHANNELS,
    Action,
    EmergencySettings,
    EmergencyWorld,
    emergency_world,
)

SMALL = EmergencySettings(users=25, reports=400, shelters=60)
CHANNELS = {channel.name: channel for channel in EMERGENCY_CHANNELS}


def metres(one: tuple[float, float], other: tuple[float, float]) -> float:
    lat1, lon1, lat2, lon2 = (math.radians(value) for value in (*one, *other))
    root = math.sin((lat2 - lat1) / 2) ** 2
    root += math.cos(lat1) * math.cos(lat2) * math.sin((lon2 - lon1) / 2) ** 2
    return 2 * 6_371_008.8 * math.asin(math.sqrt(root))


def expected_bytes(world: EmergencyWorld, channel: str, parameters: dict) -> dict[int, float]:
    """By the second of the execution."""
    definition, found = CHANNELS[channel], defaultdict(float)
    shelters = [(float(row["lat"]), float(row["lon"])) for row in csv.DictReader(world.shelters_csv().splitlines())]
    for message in world.reports():
        report = json.loads(message.payload)
        place = (report["lat"], report["lon"])
        at_s = (int(report["at_s"]) // definition.period_s + 1) * definition.period_s
        matches = all(report[name] == parameters[name] for name in ("kind", "district") if name in parameters)
        if "lat" in parameters:
            matches &= metres(place, (parameters["lat"], parameters["lon"])) < 800
        if "user" in parameters and matches:
            lat, lon = (axis[int(parameters["user"][1:])] for axis in world.positions(float(at_s)))
            matches &= metres(place, (lat, lon)) < 1000
        if matches and definition.shelters:
            near = sum(metres(place, shelter) < 300 for shelter in shelters)
            found[at_s] += near * (len(message.payload) + SHELTER_BYTES)
        elif matches:
            found[at_s] += len(message.payload)
    return {at_s: size for at_s, size in found.items() if size and at_s < world.settings.seconds}


def test_results_are_those_of_a_plain_loop() -> None:
    world = emergency_world(SMALL, 1)
    made = gateway_world(world, 5)
    subscribed = [event for event in world.scenario.events if event.action is Action.SUBSCRIBE]
    backend = list(dict.fromkeys((event.channel, tuple(event.parameters.items())) for event in subscribed))
    assert made.result_bytes.shape == (1800, len(backend))
    compared = set()
    for column, (channel, parameters) in enumerate(backend):
        if column % 3 == 0:  # a third is enough, and quick
            bytes_by_second = made.result_bytes[:, column]
            found = {int(second): float(bytes_by_second[second]) for second in np.flatnonzero(bytes_by_second)}
            assert found == expected_bytes(world, channel, dict(parameters)), (channel, parameters)
            compared.add(channel)
    assert compared == set(CHANNELS)


def test_spans_end_with_logout_and_unsubscription() -> None:
    world = emergency_world(EmergencySettings(users=120, reports=0), 2)
    spans = gateway_world(world, 5).spans
    for second in (0, 250, 300, 480, 700, 1100, 1500, 1799):
        online: set[str] = set()
        held: set[tuple[str, str]] = set()
        for event in world.scenario.events:
            if int(event.at_s) > second:
                break
            asked = (event.user, f"{event.channel} {sorted(event.parameters.items())}")
            if event.action in (Action.LOGIN, Action.LOGOUT):
                (online.add if event.action is Action.LOGIN else online.discard)(event.user)
            else:
                (held.add if event.action is Action.SUBSCRIBE else held.discard)(asked)
        expected = sum(user in online for user, _ in held)
        active = (spans.from_s <= second) & (second < spans.until_s)
        assert active.sum() == expected, second
        pairs = list(zip(spans.subscriber[active].tolist(), spans.subscription[active].tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)


def test_the_broker_in_the_middle_is_nearest_to_most() -> None:
    made = gateway_world(emergency_world(EmergencySettings(reports=0), 3), 5)
    far = ((made.positions[:, None, :] - made.broker_positions) ** 2).sum(axis=2)
    shares = np.bincount(far.argmin(axis=1), minlength=5) / 400
    assert shares[0] > 0.55
    assert shares[1:].max() < 0.15
