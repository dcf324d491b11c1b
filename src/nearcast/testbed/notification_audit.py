"""An audit of notifications: what each subscriber was owed, what it got, and what is wrong between the two.

A subscriber is owed, of each of its subscriptions, the rows of every execution from the one it began with, each
execution once and in order. Of one it gave up, it is owed a beginning of that: what was on its way when it unsubscribed
may not have come.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import msgspec

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
    unexpected: int  # there should have been none
    wrong: int  # other rows than there should have been
    examples: list[str]

    @property
    def exact(self) -> bool:
        return not (self.lost or self.repeated or self.reordered or self.unexpected or self.wrong)


class NotificationAudit:
    def __init__(self) -> None:
        self._lines: dict[tuple[str, str], Line] = {}
        self._got: defaultdict[tuple[str, str], list[tuple[int, Rows]]] = defaultdict(list)

    def subscribed(
        self, user: str, subscription: str, channel: str, parameters: Mapping[str, Any], from_execution: int
    ) -> None:
        # The first result may have come before its subscriber knew the subscription's name.
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
        """How many different subscriptions those of all subscribers are."""
        return len({subscription for _, subscription in self._lines})

    def verdict(self, executions: Mapping[str, Iterable[int]], expected: Expected) -> NotificationVerdict:
        """`executions`: those committed, of each channel."""
        judge = _Judge(expected)
        for line in self._lines.values():
            judge.look_at(line, executions.get(line.channel, ()))
        for (user, subscription), got in self._got.items():
            if (user, subscription) not in self._lines:  # nobody asked for it
                judge.look_at(Line(user, subscription, {}, 0, got), ())
        users = {user for user, _ in self._lines}
        return judge.verdict(len(users), len(self._lines), self.delivered)


class _Judge:
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
        """Subscribers share subscriptions, so the same question comes again."""
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
