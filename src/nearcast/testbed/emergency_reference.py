"""What the channels of the emergency workload must give, found by plain loops over plain records.

Written apart from the pipeline: no Spark, no SQL, no grid. From the pipeline it takes what no one else can know, which
batch a record came with and which batches an execution read; whether every record came with exactly one batch is for
the audit to check.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nearcast.workloads.emergency_channels import (
    EMERGENCY_CHANNELS,
    LOCATIONS,
    PLACE_RADIUS_M,
    REPORTS,
    SHELTER_RADIUS_M,
    USER_RADIUS_M,
    EmergencyChannel,
)
from nearcast.workloads.emergency_city import EARTH_RADIUS_M

Record = Mapping[str, Any]
Rows = list[dict[str, Any]]

REPORT_COLUMNS = ("id", "kind", "district", "lat", "lon", "severity", "at_s", "message")
CHANNELS_BY_NAME = {channel.name: channel for channel in EMERGENCY_CHANNELS}


@dataclass(frozen=True, slots=True)
class Batched:
    """A record, and the batch it came with."""

    batch: int
    record: Record


@dataclass(frozen=True, slots=True)
class Reading:
    """What one execution read: new reports after one batch up to another, and locations up to a batch."""

    execution: int
    reports: tuple[int, int]
    locations: int = 0

    @staticmethod
    def of(execution: Mapping[str, Any]) -> Reading:
        """From an entry of the data cluster's history of a channel."""
        inputs = execution["inputs"]
        after, upto = inputs["new"][REPORTS]
        return Reading(execution["execution"], (after, upto), inputs["whole"].get(LOCATIONS, 0))


class EmergencyReference:
    def __init__(self, reports: Iterable[Batched], locations: Iterable[Batched], shelters: Sequence[Record]) -> None:
        """Locations in the order they came."""
        self._reports: dict[int, list[Record]] = {}
        for new in reports:
            self._reports.setdefault(new.batch, []).append(new.record)
        self._locations: dict[str, list[Batched]] = {}
        for there in locations:
            self._locations.setdefault(there.record["user_id"], []).append(there)
        self._shelters = shelters
        self._near: dict[int, list[Record]] = {}

    def expected(self, channel: str, parameters: Mapping[str, Any], reading: Reading) -> Rows:
        """The rows of one subscription in one execution, in no order."""
        found = CHANNELS_BY_NAME[channel]
        here = self._position(parameters["user"], reading.locations) if found.by_user else None
        if found.by_user and here is None:
            return []
        after, upto = reading.reports
        return [
            row
            for batch in range(after + 1, upto + 1)
            for report in self._reports.get(batch, ())
            if _matches(found, parameters, report, here)
            for row in self._rows(found, report)
        ]

    def _position(self, user: str, upto: int) -> Record | None:
        known = [there.record for there in self._locations.get(user, ()) if there.batch <= upto]
        return known[-1] if known else None

    def _rows(self, channel: EmergencyChannel, report: Record) -> Iterable[dict[str, Any]]:
        row = {name: report[name] for name in REPORT_COLUMNS}
        if not channel.shelters:
            return [row]
        return [{**row, "shelter": shelter["name"], "capacity": shelter["capacity"]} for shelter in self._by(report)]

    def _by(self, report: Record) -> list[Record]:
        """The shelters near a report; asked again for each subscription, so they are kept."""
        if report["id"] not in self._near:
            self._near[report["id"]] = [s for s in self._shelters if distance_m(report, s) < SHELTER_RADIUS_M]
        return self._near[report["id"]]


def _matches(channel: EmergencyChannel, parameters: Mapping[str, Any], report: Record, here: Record | None) -> bool:
    if channel.by_kind and report["kind"] != parameters["kind"]:
        return False
    if channel.by_district and report["district"] != parameters["district"]:
        return False
    if channel.by_place and not distance_m(report, parameters) < PLACE_RADIUS_M:
        return False
    return here is None or distance_m(report, here) < USER_RADIUS_M


def distance_m(one: Record, other: Record) -> float:
    """Haversine; both have `lat` and `lon` in degrees."""
    lat1, lon1, lat2, lon2 = (math.radians(p[name]) for p in (one, other) for name in ("lat", "lon"))
    root = math.sin((lat2 - lat1) / 2) ** 2 + math.cos(lat1) * math.cos(lat2) * math.sin((lon2 - lon1) / 2) ** 2
    return 2 * EARTH_RADIUS_M * math.asin(math.sqrt(min(1.0, root)))
