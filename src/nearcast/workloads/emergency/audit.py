"""An audit of notifications: what each subscriber was owed, what it got, and the differences.

For each of its subscriptions, a subscriber is owed the rows of every execution from the one it began with, each
execution once and in order. For a subscription that it ended, it is owed a first part of these: what was in flight when
it unsubscribed may not have arrived.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec

from nearcast.workloads.emergency.city import EARTH_RADIUS_M
from nearcast.workloads.emergency.scenario import (
    EMERGENCY_CHANNELS,
    LOCATIONS,
    PLACE_RADIUS_M,
    REPORTS,
    SHELTER_RADIUS_M,
    USER_RADIUS_M,
    EmergencyChannel,
)

# --- the audit


EXAMPLES_MAX = 10

Rows = list[dict[str, Any]]
Expected = Callable[[str, Mapping[str, Any], int], Rows]  # channel, parameters, execution


@dataclass
class Line:
    """One subscription of one subscriber."""

    user: str
    channel: str
    parameters: Mapping[str, Any]
    from_execution: int
    got: list[tuple[int, Rows]]
    ended: bool = False


class NotificationVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of notifications: one is an execution's rows for one subscription of one subscriber."""

    subscribers: int
    subscriptions: int
    expected: int
    delivered: int
    rows: int
    lost: int
    repeated: int
    reordered: int
    unexpected: int  # should not have been sent
    wrong: int  # with the wrong rows
    examples: list[str]

    @property
    def exact(self) -> bool:
        return not (self.lost or self.repeated or self.reordered or self.unexpected or self.wrong)


class NotificationAudit:
    """Records what subscribers asked for and got, and judges it at the end."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], Line] = {}
        self._got: defaultdict[tuple[str, str], list[tuple[int, Rows]]] = defaultdict(list)

    def subscribed(
        self, user: str, subscription: str, channel: str, parameters: Mapping[str, Any], from_execution: int
    ) -> None:
        # The first result may have arrived before its subscriber knew the subscription's name.
        self._lines[user, subscription] = Line(user, channel, parameters, from_execution, self._got[user, subscription])

    def unsubscribed(self, user: str, subscription: str) -> None:
        self._lines[user, subscription].ended = True

    def got(self, user: str, subscription: str, execution: int, rows: Rows) -> None:
        self._got[user, subscription].append((execution, rows))

    @property
    def delivered(self) -> int:
        return sum(map(len, self._got.values()))

    @property
    def shared(self) -> int:
        """How many distinct subscriptions all subscribers have together."""
        return len({subscription for _, subscription in self._lines})

    def verdict(self, executions: Mapping[str, Iterable[int]], expected: Expected) -> NotificationVerdict:
        """`executions`: the committed executions of each channel."""
        judge = _Judge(expected)
        for line in self._lines.values():
            judge.look_at(line, executions.get(line.channel, ()))
        for (user, subscription), got in self._got.items():
            if (user, subscription) not in self._lines:  # the user never asked for it
                judge.look_at(Line(user, subscription, {}, 0, got), ())
        users = {user for user, _ in self._lines}
        return judge.verdict(len(users), len(self._lines), self.delivered)


class _Judge:
    """Compares what was delivered with what was expected, and counts the differences."""

    def __init__(self, expected: Expected) -> None:
        self._expected = expected
        self._known: dict[tuple[str, str, int], Rows] = {}
        self._counts: Counter[str] = Counter()
        self._examples: list[str] = []

    def look_at(self, line: Line, executions: Iterable[int]) -> None:
        numbers = [number for number, _ in line.got]
        self._counts["rows"] += sum(len(rows) for _, rows in line.got)
        self._complain("repeated", line, _repeated(numbers))
        firsts = list(dict.fromkeys(numbers))
        self._complain("reordered", line, [b for a, b in pairwise(firsts) if b < a])
        owed = {n: rows for n in executions if n >= line.from_execution and (rows := self._rows(line, n))}
        last = max(numbers, default=0)
        due = [number for number in owed if not line.ended or number <= last]
        self._counts["expected"] += len(due)
        self._complain("lost", line, [number for number in due if number not in set(numbers)])
        self._complain("unexpected", line, [number for number in firsts if number not in owed])
        wrong = [n for n, rows in line.got if n in owed and _bag(rows) != _bag(owed[n])]
        self._complain("wrong", line, wrong)

    def _rows(self, line: Line, execution: int) -> Rows:
        """The expected rows, kept because subscribers share subscriptions."""
        key = (line.channel, msgspec.json.encode(line.parameters, order="sorted").decode(), execution)
        if key not in self._known:
            self._known[key] = self._expected(line.channel, line.parameters, execution)
        return self._known[key]

    def _complain(self, what: str, line: Line, executions: list[int]) -> None:
        self._counts[what] += len(executions)
        if executions and len(self._examples) < EXAMPLES_MAX:
            shown = ", ".join(map(str, executions[:5]))
            self._examples.append(f"{what}: {line.user}, {line.channel} {dict(line.parameters)}, executions {shown}")

    def verdict(self, subscribers: int, subscriptions: int, delivered: int) -> NotificationVerdict:
        names = ("expected", "rows", "lost", "repeated", "reordered", "unexpected", "wrong")
        return NotificationVerdict(
            subscribers=subscribers,
            subscriptions=subscriptions,
            delivered=delivered,
            examples=self._examples,
            **{name: self._counts[name] for name in names},
        )


def _repeated(numbers: list[int]) -> list[int]:
    return [number for number, count in Counter(numbers).items() for _ in range(count - 1)]


def _bag(rows: Rows) -> Counter[bytes]:
    return Counter(msgspec.json.encode(row, order="sorted") for row in rows)


# --- the reference


Record = Mapping[str, Any]
REPORT_COLUMNS = ("id", "kind", "district", "lat", "lon", "severity", "at_s", "message")
CHANNELS_BY_NAME = {channel.name: channel for channel in EMERGENCY_CHANNELS}


@dataclass(frozen=True, slots=True)
class Batched:
    """A record, and the batch it came with."""

    batch: int
    record: Record


@dataclass(frozen=True, slots=True)
class Reading:
    """What one execution read: the reports after one batch up to another, and the locations up to a batch."""

    execution: int
    reports: tuple[int, int]
    locations: int = 0

    @staticmethod
    def of(execution: Mapping[str, Any]) -> Reading:
        """From an entry in the data cluster's history of a channel."""
        inputs = execution["inputs"]
        after, upto = inputs["new"][REPORTS]
        return Reading(execution["execution"], (after, upto), inputs["whole"].get(LOCATIONS, 0))


class EmergencyReference:
    """Finds what the channels of the emergency workload must give, by plain loops over plain records.

    It is independent of the pipeline: no Spark, no SQL, no grid. From the pipeline it takes only what cannot be known
    otherwise: which batch a record came with, and which batches an execution read. The audit checks that every record
    came with exactly one batch.
    """

    def __init__(self, reports: Iterable[Batched], locations: Iterable[Batched], shelters: Sequence[Record]) -> None:
        """Locations must be in the order of arrival."""
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
        """The shelters near a report, kept because every subscription asks for them."""
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
