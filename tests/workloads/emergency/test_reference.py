"""The plain loops that say what the emergency channels must give."""

from __future__ import annotations

from typing import Any

import pytest

from nearcast.workloads.emergency.audit import Batched, EmergencyReference, Reading, distance_m

KM = 1 / 111.195  # degrees of latitude


def report(number: int, kind: str = "fire", lat: float = 60.0, district: str = "d00") -> dict[str, Any]:
    common = {"lon": 25.0, "severity": 1, "at_s": 0.0, "message": "", "district": district}
    return {"id": number, "kind": kind, "lat": lat, **common}


REPORTS = [
    Batched(1, report(1)),
    Batched(2, report(2, kind="flood")),
    Batched(2, report(3, lat=60 + 0.7 * KM)),
    Batched(3, report(4, lat=60 + 1.2 * KM, district="d01")),
]
LOCATIONS = [
    Batched(1, {"user_id": "ann", "lat": 60.0, "lon": 25.0}),
    Batched(4, {"user_id": "ann", "lat": 60 + 1.2 * KM, "lon": 25.0}),
]
SHELTERS = [
    {"name": "near", "lat": 60 + 0.1 * KM, "lon": 25.0, "capacity": 20},
    {"name": "far", "lat": 60 + 9 * KM, "lon": 25.0, "capacity": 30},
]
REFERENCE = EmergencyReference(REPORTS, LOCATIONS, SHELTERS)


def ids(channel: str, parameters: dict[str, Any], reading: Reading) -> list[int]:
    return [row["id"] for row in REFERENCE.expected(channel, parameters, reading)]


@pytest.mark.parametrize(
    ("channel", "parameters", "found"),
    [
        ("reports_of_kind", {"kind": "fire"}, [1, 3, 4]),
        ("reports_in_district", {"district": "d01"}, [4]),
        ("kind_in_district", {"kind": "flood", "district": "d00"}, [2]),
        ("reports_near_place", {"lat": 60.0, "lon": 25.0}, [1, 2, 3]),
        ("reports_near_me", {"kind": "fire", "user": "ann"}, [1, 3]),
        ("reports_near_me", {"kind": "fire", "user": "bob"}, []),
        ("shelters_near_place", {"kind": "fire", "lat": 60.0, "lon": 25.0}, [1]),
    ],
)
def test_each_kind_of_condition(channel: str, parameters: dict[str, Any], found: list[int]) -> None:
    assert ids(channel, parameters, Reading(1, (0, 3), locations=3)) == found


def test_only_new_reports_and_the_location_that_was_known() -> None:
    assert ids("reports_of_kind", {"kind": "fire"}, Reading(2, (1, 2))) == [3]
    moved = Reading(2, (0, 3), locations=4)
    assert ids("reports_near_me", {"kind": "fire", "user": "ann"}, moved) == [3, 4]


def test_a_row_for_each_shelter_near_the_report() -> None:
    (row,) = REFERENCE.expected("shelters_near_me", {"kind": "fire", "user": "ann"}, Reading(1, (0, 1), locations=1))
    assert (row["shelter"], row["capacity"], row["id"]) == ("near", 20, 1)


def test_what_an_execution_read_is_taken_from_its_history() -> None:
    entry = {"execution": 7, "inputs": {"new": {"emergency_reports": [3, 5]}, "whole": {"user_locations": 9}}}
    assert Reading.of(entry) == Reading(7, (3, 5), 9)


def test_a_degree_of_latitude_is_about_111_km() -> None:
    assert distance_m({"lat": 60.0, "lon": 25.0}, {"lat": 61.0, "lon": 25.0}) == pytest.approx(111_195, rel=1e-4)
