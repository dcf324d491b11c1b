"""Reports of the emergency workload: eight publishers cross the city and report what they see (section 6.1.2).

A report is JSON of 200 to 700 bytes on the topic `emergency.KIND`. What is in it follows from the seed and its number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from nearcast.flow.demand import FloatArray, IntArray
from nearcast.workloads.emergency_city import City, Crowd

# Eight types (6.1.2); the paper does not name them, nor how often they are. Frequent ones load whoever asks for them.
KINDS = {
    "accident": 0.24,
    "fire": 0.18,
    "flood": 0.14,
    "storm": 0.12,
    "outage": 0.11,
    "gas_leak": 0.09,
    "riot": 0.07,
    "collapse": 0.05,
}
KIND_NAMES = tuple(KINDS)
REPORT_TOPIC = "emergency."
BYTES_MIN, BYTES_MAX = 200, 700  # of a report (6.1.2)
SEVERITIES = 5
PUBLISHERS_WALK = 1_000_003  # added to the seed: nobody walks as a publisher drives
_WORDS = "keep clear of the area and follow the instructions of the rescue services on site until further notice; "


class Message(NamedTuple):
    at_s: float  # since the start of the run
    topic: str
    payload: bytes


class Reports(msgspec.Struct, frozen=True, eq=False):
    """All reports of a run as columns, by rising time. Times are those of the run."""

    at_s: FloatArray
    kind: IntArray  # numbers of KIND_NAMES
    district: IntArray  # numbers of City.districts
    lat: FloatArray
    lon: FloatArray
    severity: IntArray
    size: IntArray  # bytes

    @staticmethod
    def seen(city: City, publishers: int, count: int, times: tuple[float, float], seed: int) -> Reports:
        """`times`: the seconds of the scenario, and how many of them pass in a second of the run."""
        scenario_s, speed = times
        dice = np.random.default_rng((seed, 1))
        at_s = np.sort(dice.random(count)) * scenario_s
        publisher = dice.integers(publishers, size=count)
        lat, lon, district = np.empty(count), np.empty(count), np.empty(count, dtype=np.int64)
        crowd = Crowd(city, publishers, city.by_car, seed + PUBLISHERS_WALK)
        seconds, starts = np.unique(at_s.astype(np.int64), return_index=True)
        # Publishers know where they are once a second.
        for second, rows in zip(seconds.tolist(), np.split(np.arange(count), starts)[1:], strict=True):
            lats, lons = crowd.positions(float(second))
            lat[rows], lon[rows] = lats[publisher[rows]], lons[publisher[rows]]
            district[rows] = crowd.districts(float(second))[publisher[rows]]
        return Reports(
            np.round(at_s / speed, 3),
            dice.choice(len(KINDS), size=count, p=list(KINDS.values())),
            district,
            lat,
            lon,
            dice.integers(1, SEVERITIES + 1, size=count),
            dice.integers(BYTES_MIN, BYTES_MAX + 1, size=count),
        )

    def __len__(self) -> int:
        return len(self.at_s)

    def messages(self, city: City) -> Iterator[Message]:
        """Each with its topic and payload."""
        names = city.districts
        columns = (self.at_s, self.kind, self.district, self.lat, self.lon, self.severity, self.size)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        for number, (at_s, kind, district, lat, lon, severity, size) in enumerate(rows, start=1):
            record = {
                "id": number,
                "kind": KIND_NAMES[kind],
                "district": names[district],
                "lat": lat,
                "lon": lon,
                "severity": severity,
                "at_s": at_s,
                "message": "",
            }
            yield Message(at_s, REPORT_TOPIC + KIND_NAMES[kind], _filled(record, size))


def _filled(record: dict[str, object], size: int) -> bytes:
    """The record as JSON of exactly so many bytes: the message is as long as it must be."""
    missing = size - len(json.dumps(record, separators=(",", ":")))
    record["message"] = (_WORDS * (missing // len(_WORDS) + 1))[:missing]
    return json.dumps(record, separators=(",", ":")).encode()
