"""The city of the emergency workload: a square around Helsinki with districts, places, shelters, and people who walk.

The paper moved its subscribers on the Helsinki map of the ONE simulator. Here people walk straight to random points of
the square (`workloads/rgame.py`), with the ONE simulator's default breaks. As there, more of them are in the middle
than at the edges. Positions are degrees, rounded to about a tenth of a metre, as in the records.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from nearcast.errors import UsageError
from nearcast.flow.model import FloatArray, IntArray
from nearcast.workloads.rgame import Movement, Walk

# --- the city and its people


EARTH_RADIUS_M = 6_371_008.8  # mean radius of WGS 84 (IUGG), as in `distance` of the channel language
DIGITS = 6  # of a degree
WARM_UP_S = 3600.0  # walked before time 0: by then people are distributed as they will be later
SHELTER_COLUMNS = ("shelter_id", "name", "lat", "lon", "capacity")

WALKERS_M_PER_S = 1.4  # people on foot
DRIVERS_M_PER_S = 20.0  # publishers 'traverse rapidly' (6.1.2)
WALKERS_BREAK_MAX_S = 120.0  # ONE's default
DRIVERS_BREAK_MAX_S = 5.0


class City(msgspec.Struct, frozen=True, kw_only=True):
    """A square, divided into square districts."""

    latitude: float = 60.17  # of the middle
    longitude: float = 24.94
    side_m: float = 5000.0  # ONE's map of Helsinki is 4.5 km x 3.4 km
    districts_per_side: int = 4
    places: int = 20  # places that people ask about

    def __post_init__(self) -> None:
        if self.side_m <= 0 or min(self.districts_per_side, self.places) < 1 or abs(self.latitude) > 80:
            raise UsageError("a city needs side_m above 0, a district, a place, and a latitude from -80 to 80")

    @property
    def on_foot(self) -> Movement:
        return self._movement(WALKERS_M_PER_S, WALKERS_BREAK_MAX_S)

    @property
    def by_car(self) -> Movement:
        return self._movement(DRIVERS_M_PER_S, DRIVERS_BREAK_MAX_S)

    def _movement(self, m_per_s: float, break_max_s: float) -> Movement:
        tiles_per_s = m_per_s * self.districts_per_side / self.side_m
        return Movement(speed_tiles_per_s=tiles_per_s, pause_min_s=0.0, pause_max_s=break_max_s)

    @property
    def districts(self) -> tuple[str, ...]:
        """The names by number: row * districts_per_side + column, as `Walk.tiles` counts."""
        return tuple(f"d{x}{y}" for x in range(self.districts_per_side) for y in range(self.districts_per_side))

    def degrees(self, x_m: FloatArray, y_m: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Latitude and longitude of points given in metres from the south-west corner."""
        north_m, east_m = y_m - self.side_m / 2, x_m - self.side_m / 2
        lat = self.latitude + np.degrees(north_m / EARTH_RADIUS_M)
        lon = self.longitude + np.degrees(east_m / (EARTH_RADIUS_M * np.cos(np.radians(self.latitude))))
        return np.round(lat, DIGITS), np.round(lon, DIGITS)

    def points(self, count: int, seed: tuple[int, ...]) -> tuple[FloatArray, FloatArray]:
        """Latitudes and longitudes of this many random points."""
        x_m, y_m = np.random.default_rng(seed).random((2, count)) * self.side_m
        return self.degrees(x_m, y_m)

    def broker_sites(self, brokers: int) -> tuple[FloatArray, FloatArray]:
        """One broker in the middle, the others on a circle through the corners, where few people are (see 6.1.3)."""
        angle = 2 * np.pi * np.arange(brokers - 1) / max(1, brokers - 1) + np.pi / 4
        middle, radius_m = self.side_m / 2, self.side_m / 2**0.5
        x_m = np.append(middle, middle + radius_m * np.cos(angle))
        y_m = np.append(middle, middle + radius_m * np.sin(angle))
        return self.degrees(x_m, y_m)


class Crowd:
    """People or publishers on the move: where each of them is at a time, in seconds of the scenario."""

    def __init__(self, city: City, count: int, movement: Movement, seed: int) -> None:
        self._city = city
        self._count = count
        self._district_m = city.side_m / city.districts_per_side
        self._walk = Walk(count, city.districts_per_side, city.districts_per_side, movement, seed)

    def positions(self, at_s: float) -> tuple[FloatArray, FloatArray]:
        x, y = self._walk.positions(at_s + WARM_UP_S, self._count)
        return self._city.degrees(x * self._district_m, y * self._district_m)

    def districts(self, at_s: float) -> IntArray:
        """The district of each, as an index into `City.districts`."""
        return self._walk.tiles(at_s + WARM_UP_S, self._count)


class Shelters(msgspec.Struct, frozen=True, eq=False):
    lat: FloatArray
    lon: FloatArray
    capacity: IntArray

    @staticmethod
    def somewhere(city: City, count: int, seed: int) -> Shelters:
        lat, lon = city.points(count, (seed, 3))
        return Shelters(lat, lon, np.random.default_rng((seed, 4)).integers(20, 500, size=count))

    def csv(self) -> str:
        """As CSV, with the column names in the first line."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(SHELTER_COLUMNS)
        rows = zip(self.lat.tolist(), self.lon.tolist(), self.capacity.tolist(), strict=True)
        writer.writerows((number, f"shelter {number}", *row) for number, row in enumerate(rows, start=1))
        return text.getvalue()


def distance_m(lat1: FloatArray, lon1: FloatArray, lat2: FloatArray, lon2: FloatArray) -> FloatArray:
    """Great-circle distances by the haversine formula, as in the channel language."""
    lat1, lon1, lat2, lon2 = (np.radians(value) for value in (lat1, lon1, lat2, lon2))
    root = np.sin((lat2 - lat1) / 2) ** 2 + np.cos(lat1) * np.cos(lat2) * np.sin((lon2 - lon1) / 2) ** 2
    return np.asarray(2 * EARTH_RADIUS_M * np.arcsin(np.sqrt(np.minimum(1.0, root))), dtype=np.float64)


# --- reports


# Eight types (6.1.2). The paper says neither which nor how often they occur. Frequent ones load their subscribers.
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
PUBLISHERS_WALK = 1_000_003  # added to the seed, so that publishers take other paths than people
_WORDS = "keep clear of the area and follow the instructions of the rescue services on site until further notice; "


class Message(NamedTuple):
    at_s: float  # since the start of the run
    topic: str
    payload: bytes


class Reports(msgspec.Struct, frozen=True, eq=False):
    """All reports of a run as columns, in order of time, in seconds of the run.

    They are made by eight publishers that cross the city (section 6.1.2). A report is JSON of 200 to 700 bytes on the
    topic `emergency.KIND`. Its content follows from the seed and its number.
    """

    at_s: FloatArray
    kind: IntArray  # indices into KIND_NAMES
    district: IntArray  # indices into City.districts
    lat: FloatArray
    lon: FloatArray
    severity: IntArray
    size: IntArray  # bytes

    @staticmethod
    def seen(city: City, publishers: int, count: int, times: tuple[float, float], seed: int) -> Reports:
        """`times`: the length of the scenario in seconds, and how many of them pass in a second of the run."""
        scenario_s, speed = times
        dice = np.random.default_rng((seed, 1))
        at_s = np.sort(dice.random(count)) * scenario_s
        publisher = dice.integers(publishers, size=count)
        lat, lon, district = np.empty(count), np.empty(count), np.empty(count, dtype=np.int64)
        crowd = Crowd(city, publishers, city.by_car, seed + PUBLISHERS_WALK)
        seconds, starts = np.unique(at_s.astype(np.int64), return_index=True)
        # Publishers determine their position once a second.
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
        """The reports as messages, with topic and payload."""
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
    """The record as JSON of exactly `size` bytes; its message is as long as needed."""
    missing = size - len(json.dumps(record, separators=(",", ":")))
    record["message"] = (_WORDS * (missing // len(_WORDS) + 1))[:missing]
    return json.dumps(record, separators=(",", ":")).encode()
