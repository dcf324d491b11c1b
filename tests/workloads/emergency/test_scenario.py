"""The emergency workload: its people, reports, channels and scenario, and that one seed gives one world."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from nearcast.errors import UsageError
from nearcast.pipeline.channels.language import parse_channel
from nearcast.pipeline.channels.rewrite import rewrite
from nearcast.workloads.emergency.city import KIND_NAMES, City, distance_m
from nearcast.workloads.emergency.scenario import (
    CHANNELS,
    DATASETS,
    EMERGENCY_CHANNELS,
    Action,
    EmergencySettings,
    Scenario,
    emergency_world,
)

SMALL = EmergencySettings(users=30, reports=500, shelters=40)


def test_one_seed_gives_one_world() -> None:
    one, again, other = (emergency_world(SMALL, seed) for seed in (1, 1, 2))
    assert one.scenario == again.scenario
    assert list(one.reports()) == list(again.reports())
    assert one.shelters_csv() == again.shelters_csv()
    assert list(one.locations(90.0)) == list(again.locations(90.0))
    assert one.scenario.events != other.scenario.events
    assert [report.payload for report in one.reports()] != [report.payload for report in other.reports()]


def test_reports_are_json_of_200_to_700_bytes_by_time() -> None:
    reports = list(emergency_world(SMALL, 3).reports())
    assert len(reports) == 500
    assert [report.at_s for report in reports] == sorted(report.at_s for report in reports)
    assert 0 <= reports[0].at_s < reports[-1].at_s < 1800
    sizes = [len(report.payload) for report in reports]
    assert 200 <= min(sizes) < 220 < 680 < max(sizes) <= 700
    columns = set(DATASETS[0].columns)
    for number, report in enumerate(reports, start=1):
        record = json.loads(report.payload)
        assert set(record) == columns
        assert (record["id"], record["at_s"], report.topic) == (number, report.at_s, f"emergency.{record['kind']}")
        assert record["district"] in SMALL.city.districts
        assert 1 <= record["severity"] <= 5
    assert {report.topic for report in reports} == {f"emergency.{kind}" for kind in KIND_NAMES}


def test_people_walk_and_publishers_drive() -> None:
    world = emergency_world(SMALL, 4)
    before, after = world.positions(100.0), world.positions(110.0)
    walked_m = distance_m(*before, *after)
    assert walked_m.max() < 14.5  # 1.4 m/s, and rounding
    assert (walked_m > 10).sum() > 10  # but for those who have a break
    lat, lon = after
    assert distance_m(lat, lon, np.array(60.17), np.array(24.94)).max() < 5000 / 2**0.5 + 10
    seen = world.report_columns
    jumps_m = distance_m(seen.lat[:-1], seen.lon[:-1], seen.lat[1:], seen.lon[1:])
    assert np.median(jumps_m) > 500  # eight publishers, all over the city


def test_positions_are_those_of_the_records() -> None:
    world = emergency_world(SMALL, 5)
    lat, lon = world.positions(12.0)
    messages = list(world.locations(12.0))
    assert [message.topic for message in messages] == [f"location.{user}" for user in world.users]
    records = [json.loads(message.payload) for message in messages]
    assert [(record["lat"], record["lon"]) for record in records] == list(zip(lat.tolist(), lon.tolist(), strict=True))
    assert all(set(record) == set(DATASETS[1].columns) for record in records)


def test_a_district_is_where_its_reports_are() -> None:
    city = City(districts_per_side=2)
    world = emergency_world(EmergencySettings(city=city, users=1, reports=400), 6)
    records = [json.loads(report.payload) for report in world.reports()]
    assert len(records) == 400
    for record in records:
        east, north = record["lon"] > city.longitude, record["lat"] > city.latitude
        on_the_line = min(abs(record["lon"] - city.longitude), abs(record["lat"] - city.latitude)) < 2e-6
        assert on_the_line or record["district"] == f"d{int(east)}{int(north)}"


def test_shelters_are_rows_of_their_dataset() -> None:
    rows = list(csv.DictReader(emergency_world(EmergencySettings(), 1).shelters_csv().splitlines()))
    assert len(rows) == 200
    assert list(rows[0]) == list(DATASETS[2].columns)


def test_the_seven_channels_are_accepted_without_a_warning() -> None:
    schemas = {dataset.name: dataset.columns for dataset in DATASETS}
    channels = [parse_channel(text) for text in CHANNELS]
    assert len(channels) == 7
    assert {channel.period_s for channel in channels} == {10.0, 20.0, 30.0}
    for channel, own in zip(channels, EMERGENCY_CHANNELS, strict=True):
        rewritten = rewrite(channel, schemas)
        assert rewritten.warnings == ()
        assert (channel.name, dict(channel.parameters)) == (own.name, own.parameters)
        assert channel.new_datasets == ("emergency_reports",)


def test_the_scenario_has_the_papers_times_and_counts() -> None:
    scenario = emergency_world(EmergencySettings(), 0).scenario
    by_action: dict[Action, list] = {action: [] for action in Action}
    for event in scenario.events:
        by_action[event.action].append(event)
    first_logins = {event.user: event.at_s for event in reversed(by_action[Action.LOGIN])}
    assert len(first_logins) == 400
    assert max(first_logins.values()) < 240
    subscribed = by_action[Action.SUBSCRIBE]
    assert all(240 <= event.at_s <= 480 for event in subscribed)
    assert 2100 <= len(subscribed) <= 2400
    backend = {(event.channel, tuple(event.parameters.items())) for event in subscribed}
    assert 550 <= len(backend) <= 700
    per_channel = Counter((event.user, event.channel) for event in subscribed)
    assert set(per_channel.values()) == {1, 2, 3}
    assert set(Counter(user for user, _ in per_channel).values()) == {1, 2, 3, 4, 5}
    assert len(by_action[Action.LOGOUT]) == len(by_action[Action.LOGIN]) - 400 > 20
    assert len(by_action[Action.UNSUBSCRIBE]) > 50
    asked = {(event.user, event.channel, tuple(event.parameters.items())) for event in subscribed}
    assert len(asked) == len(subscribed)


def test_speed_makes_a_short_run_of_the_same_world() -> None:
    slow, fast = emergency_world(SMALL, 7), emergency_world(EmergencySettings(users=30, reports=500, speed=10), 7)
    assert fast.settings.seconds == 180
    pairs = zip(slow.scenario.events, fast.scenario.events, strict=True)
    assert all(abs(one.at_s / 10 - other.at_s) < 1e-3 and one.user == other.user for one, other in pairs)
    assert max(report.at_s for report in fast.reports()) < 180
    assert (slow.positions(600.0)[0] == fast.positions(60.0)[0]).all()


def test_a_scenario_file_gives_the_scenario_and_the_world_again(tmp_path: Path) -> None:
    world = emergency_world(SMALL, 8)
    file = tmp_path / "scenario.json"
    world.scenario.save(file)
    loaded = Scenario.load(file)
    assert loaded == world.scenario
    assert list(emergency_world(loaded.settings, loaded.seed).reports()) == list(world.reports())


def test_what_is_no_scenario_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a scenario file"):
        Scenario.load(tmp_path / "missing.json")
    (tmp_path / "other.json").write_text('{"events": 3}')
    with pytest.raises(UsageError, match="not a scenario file"):
        Scenario.load(tmp_path / "other.json")


@pytest.mark.parametrize("wrong", [{"users": 0}, {"speed": 0.0}, {"scenario_s": 60.0}, {"reports": -1}])
def test_wrong_sizes_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError):
        EmergencySettings(**wrong)


def test_a_city_needs_a_size() -> None:
    with pytest.raises(UsageError, match="side_m"):
        City(side_m=0.0)
