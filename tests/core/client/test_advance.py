"""How far a cursor may advance: a table of cases, and random ones against the three rules taken literally."""

from __future__ import annotations

from random import Random

import pytest

from nearcast.core.client.advance import SILENT_MAX, Advance, Needs
from nearcast.core.client.lines import Line
from nearcast.core.model.cursors import Position
from nearcast.core.model.logs import EntryId
from nearcast.core.model.message import Kept, Lost, Message

BEGIN = Position((5, 0), 0, 100)


class Part:
    """Writes the lines of a part, one after the other."""

    def __init__(self, position: Position = BEGIN) -> None:
        self.upto = Position(position.entry, 0, position.count)

    def line(self, events: int) -> Line:
        """An entry of so many messages; 0: a mark."""
        entry, count = (self.upto.entry[0] + 1, 0), self.upto.count + events
        messages: list[Kept] = [Message("t", b"", 7, number, 0.0, 0.0, None, "") for number in range(events)]
        line = Line(entry, self.upto, count, 1, messages)
        self.upto = Position(entry, 0, count)
        return line

    def missing(self, count: int) -> Line:
        """The report that messages are missing; it stands at the entry before them."""
        lost = Lost("log", "b1@1", count, "retention")
        line = Line(self.upto.entry, self.upto, self.upto.count + count, 1, [lost])
        self.upto = Position(self.upto.entry, 0, self.upto.count + count)
        return line


class Case:
    """An advance, and what other parts have committed."""

    def __init__(self, position: Position = BEGIN) -> None:
        self.advance = Advance(position)
        self.part = Part(position)
        self.elsewhere: dict[str, EntryId] = {}
        self.untaken: list[tuple[Line, int]] = []

    def do(self, steps: str) -> None:
        """e2: an entry of two messages; s: one without; l: a report of a loss; m: a mark that needs something of the
        part x; t: the program takes an event; c: it commits; w: the server has the cursor where it may be; x: the
        other part was committed."""
        for step in steps.split():
            match step[0]:
                case "e":
                    self.deliver(self.part.line(int(step[1:])))
                case "l":
                    self.deliver(self.part.missing(3))
                case "s":
                    self.deliver(self.part.line(0))
                case "m":
                    self.deliver(self.part.line(0), {"x": (9, 9)})
                case "t":
                    self.advance.take(*self.untaken.pop(0))
                case "c":
                    self.advance.want()
                case "w":
                    self.advance.committed(self.upto)
                case "x":
                    self.elsewhere["x"] = (9, 9)

    def deliver(self, line: Line, needs: Needs | None = None) -> None:
        self.advance.deliver(line, needs or {})
        self.untaken += [(line, number + 1) for number in range(len(line.events))]

    @property
    def upto(self) -> Position:
        return self.advance.upto(lambda part, entry: self.elsewhere.get(part, (0, 0)) >= entry)


@pytest.mark.parametrize(
    ("steps", "entry", "index", "count"),
    [
        # What is taken and committed is passed, and nothing else.
        ("", 5, 0, 100),
        ("e2", 5, 0, 100),
        ("e2 t t", 5, 0, 100),
        ("e2 t c", 5, 1, 100),
        ("e2 t t c", 6, 0, 102),
        ("e1 e1 t c t", 6, 0, 101),
        ("e1 e1 t c t w", 6, 0, 101),
        ("e1 e1 t c t w c", 7, 0, 102),
        # Lines without events are passed with what is before them.
        ("s", 6, 0, 100),
        ("s s s", 8, 0, 100),
        ("e1 s", 5, 0, 100),
        ("e1 s t c", 7, 0, 101),
        ("e1 s e1 s t c", 7, 0, 101),
        ("e1 t c w s", 7, 0, 101),
        ("e1 t c w s w s", 8, 0, 101),
        ("e2 t c s", 5, 1, 100),
        # A mark is passed when what it needs is committed.
        ("m", 5, 0, 100),
        ("m x", 6, 0, 100),
        ("m e1 t c", 5, 0, 100),
        ("m e1 t c w", 5, 0, 100),
        ("m e1 t c w x", 7, 0, 101),
        ("m s e1 t c", 5, 0, 100),
        ("m s e1 t c x", 8, 0, 101),
        ("e1 m e1 t c", 6, 0, 101),
        ("e1 m e1 t t c", 6, 0, 101),
        ("e1 m e1 t t c x", 8, 0, 102),
        ("s m", 6, 0, 100),
        ("e2 m t c", 5, 1, 100),
        ("m m e1 t c", 5, 0, 100),
        # A report is an event like any other, though it stands at the entry before.
        ("l s", 5, 0, 100),
        ("l s t", 5, 0, 100),
        ("l s t c", 6, 0, 103),
        ("l m t c", 5, 0, 103),
        ("l e1 t c", 5, 0, 103),
        ("l e1 t c w t c", 6, 0, 104),
    ],
)
def test_how_far_the_cursor_may_advance(steps: str, entry: int, index: int, count: int) -> None:
    case = Case()
    case.do(steps)
    assert case.upto == Position((entry, 0), index, count)


@pytest.mark.parametrize(
    ("steps", "ready", "ahead", "done", "settled"),
    [
        ("", False, False, True, True),
        ("e1", True, False, False, False),
        ("e1 t", False, True, False, False),
        ("e1 t c", False, True, False, False),
        ("e1 t c w", False, False, True, True),
        ("s", False, False, True, False),
        ("s w", False, False, True, True),
        ("e1 m t c w", False, False, True, False),
        ("m e1 t c w", False, True, False, False),
        ("m e1 t c w x w", False, False, True, True),
        ("l t", False, True, False, False),
        ("l t c w", False, False, True, True),
    ],
)
def test_what_is_left_to_do(steps: str, ready: bool, ahead: bool, done: bool, settled: bool) -> None:
    case = Case()
    case.do(steps)
    advance = case.advance
    found = (advance.has_ready, advance.is_ahead, advance.is_done, advance.is_settled)
    assert found == (ready, ahead, done, settled)


def test_a_member_that_begins_inside_an_entry_counts_from_there() -> None:
    advance = Advance(Position((5, 0), 1, 100))
    line = Line((6, 0), Position((5, 0), 1, 100), 103, 1, [Lost("log", "b1@1", 1, ""), Lost("log", "b1@1", 1, "")])
    advance.deliver(line, {})
    advance.take(line, 1)
    assert advance.want() == Position((5, 0), 2, 100)
    advance.take(line, 2)
    assert advance.want() == Position((6, 0), 0, 103)


def test_the_cursor_says_how_many_messages_come_before_it_once_that_is_known() -> None:
    advance = Advance(Position((5, 0)))
    advance.began_behind(40)
    assert advance.upto(lambda part, entry: True) == Position((5, 0), 0, 40)
    advance.committed(Position((5, 0)))  # the answer to what was written before that was known
    assert advance.upto(lambda part, entry: True) == Position((5, 0), 0, 40)


def test_lines_without_events_have_a_limit_and_room_again_when_the_cursor_has_passed_them() -> None:
    case = Case()
    for _ in range(SILENT_MAX - 1):
        case.do("m")
    assert case.advance.has_room
    case.do("m")
    assert not case.advance.has_room
    case.do("x w")
    assert case.advance.has_room


# --- against the rules


class Rules:
    """The three rules, taken literally: it keeps every line."""

    def __init__(self) -> None:
        self.lines: list[tuple[Line, Needs]] = []
        self.taken = self.wanted = self.committed = 0  # events
        self.met: set[int] = set()  # lines whose needs were met once

    def upto(self, elsewhere: dict[str, EntryId]) -> tuple[Position, int]:
        """The place, and the number of events before it."""
        place, events, held = BEGIN, 0, False
        for number, (_, needs) in enumerate(self.lines):
            met = number in self.met or all(elsewhere.get(part, (0, 0)) >= entry for part, entry in needs.items())
            held = held or not met
            if not held:
                self.met.add(number)
        for number, (line, _) in enumerate(self.lines):
            if not line.events and number not in self.met:
                break
            passed = min(len(line.events), self.wanted - events)
            if passed or not line.events:
                place, events = line.behind(passed), events + passed
            if passed < len(line.events):
                break
        return place, events

    @property
    def delivered(self) -> int:
        return sum(len(line.events) for line, _ in self.lines)


@pytest.mark.parametrize("seed", range(200))
def test_random_cases_follow_the_rules(seed: int) -> None:
    rng = Random(seed)
    case, rules = Case(), Rules()
    for step in rng.choices(["line", "mark", "loss", "take", "commit", "write", "elsewhere"], k=200):
        if step == "line":
            line = case.part.line(rng.choice((0, 1, 2, 3)))
            case.deliver(line)
            rules.lines.append((line, {}))
        elif step == "loss":
            line = case.part.missing(rng.randint(1, 9))
            case.deliver(line)
            rules.lines.append((line, {}))
        elif step == "mark":
            needs = {part: (rng.randint(1, 30), 0) for part in rng.sample("xyz", k=rng.choice((0, 1, 2)))}
            line = case.part.line(0)
            case.deliver(line, needs)
            rules.lines.append((line, needs))
        elif step == "take" and case.untaken:
            case.advance.take(*case.untaken.pop(0))
            rules.taken += 1
        elif step == "commit" and case.advance.is_ahead:
            case.advance.want()
            rules.wanted = rules.taken
        elif step == "write":
            case.advance.committed(case.upto)
            rules.committed = rules.upto(case.elsewhere)[1]
        elif step == "elsewhere":
            case.elsewhere[rng.choice("xyz")] = (rng.randint(1, 30), 0)
        assert case.upto == rules.upto(case.elsewhere)[0]
        assert case.advance.has_ready == (rules.delivered > rules.taken)
        assert case.advance.is_ahead == (rules.taken > rules.committed)
        assert case.advance.is_done == (rules.delivered == rules.taken == rules.committed)
