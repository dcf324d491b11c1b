"""The audit compares what programs were promised with what they got, independently of the system.

Programs report what they published, what was acknowledged, and what every subscriber saw. The audit finds what is
wrong. Programs stamp payloads themselves, so the audit notices if the system mixes up its own numbers.

A line is what one publisher sends on one topic, numbered from 1. What a subscriber misses of a line is lost at its
beginning (prefix), between messages that arrived (middle) or at its end (suffix). A hole in the middle must be reported
by a Gap. At the ends an Interrupted of that time is enough, because the subscriber may not know how far the line goes.

All times are seconds since the Unix epoch.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct

from nearcast.core.model.message import Event, Gap, Interrupted, Message

# An Interrupted says since when nothing was heard. What the server sent just before that may still have been in flight.
ON_ITS_WAY_S = 1.0
EXAMPLES_MAX = 20

_NEVER = float("inf")
_STAMP = Struct("<QI")

Line = tuple[int, str]  # publisher, topic
Span = tuple[int, int]  # first and last number


def stamp(publisher: int, topic: str, number: int) -> bytes:
    """The beginning of an audited payload."""
    return _STAMP.pack(publisher, number) + topic.encode()


@dataclass
class Verdict:
    """Counts of one run. A message that is missing or duplicated counts once for each subscriber concerned."""

    published: int = 0
    acknowledged: int = 0
    delivered: int = 0
    gaps: int = 0
    interrupted: int = 0  # how often an interruption began
    lost_prefix: int = 0
    lost_middle: int = 0
    lost_suffix: int = 0
    untold: int = 0  # how many of the lost are not reported by any Gap or Interrupted
    duplicated: int = 0
    reordered: int = 0
    unexpected: int = 0  # never published, changed on the way, or of a topic that was not subscribed
    gap_over_delivered: int = 0  # messages that arrived although a Gap says they will not
    examples: list[str] = field(default_factory=list)

    @property
    def lost(self) -> int:
        """Acknowledged messages that an attached subscriber did not get, reported or not."""
        return self.lost_prefix + self.lost_middle + self.lost_suffix

    @property
    def exact(self) -> bool:
        """Guarantee 1: everything exactly once and in order, and no Gap or Interrupted."""
        return self.honest and not (self.lost or self.gaps or self.interrupted)

    @property
    def honest(self) -> bool:
        """Guarantee 2: everything missing was reported, and nothing is duplicated, reordered or invented."""
        wrong = self.untold + self.duplicated + self.reordered + self.unexpected + self.gap_over_delivered
        return not wrong

    def __str__(self) -> str:
        counts = [f"{name} {value}" for name, value in vars(self).items() if name != "examples"]
        return "\n  ".join([", ".join(counts), *self.examples])


class _Publications:
    """One line as its publisher knows it; message n is at index n - 1."""

    __slots__ = ("acknowledged_s", "published_s")

    def __init__(self) -> None:
        self.published_s = array("d")
        self.acknowledged_s = array("d")


class _View:
    """One line as one subscriber saw it: the spans of numbers that arrived, sorted, and those that Gaps name."""

    __slots__ = ("gaps", "spans")

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.gaps: list[Span] = []

    def has(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self.spans)

    def insert(self, number: int) -> None:
        self.spans = sorted([*self.spans, (number, number)])

    def holes(self, count: int) -> Iterator[Span]:
        """The spans of 1..count that did not arrive."""
        expected = 1
        for first, last in self.spans:
            if first > expected:
                yield expected, first - 1
            expected = last + 1
        if count >= expected:
            yield expected, count


@dataclass
class _Subscriber:
    """What one subscriber has seen."""

    name: str
    joined_s: dict[str, float] = field(default_factory=dict)  # topic -> when subscribe returned
    views: dict[Line, _View] = field(default_factory=lambda: defaultdict(_View))
    interruptions: dict[tuple[str, float], float] = field(default_factory=dict)  # (topic, since) -> until
    leaves_s: float = _NEVER  # it is not owed what is published later

    def interrupted(self, topic: str, from_s: float, to_s: float) -> bool:
        """Whether an Interrupted covers some moment of this time."""
        return any(
            of == topic and since_s - ON_ITS_WAY_S <= to_s and from_s <= until_s
            for (of, since_s), until_s in self.interruptions.items()
        )


class Audit:
    """Collects what publishers and subscribers report, and compares the two in `verdict`."""

    def __init__(self) -> None:
        self.delivered = 0
        self._lines: dict[Line, _Publications] = {}
        self._subscribers: dict[str, _Subscriber] = {}
        self._seen = Verdict()  # what is known to be wrong as soon as it is seen

    # --- what publishers report

    def published(self, publisher: int, topic: str, at_s: float) -> int:
        """A message is about to be published; returns its number."""
        line = self._lines.setdefault((publisher, topic), _Publications())
        line.published_s.append(at_s)
        line.acknowledged_s.append(_NEVER)
        self._seen.published += 1
        return len(line.published_s)

    def acknowledged(self, publisher: int, topic: str, number: int, at_s: float) -> None:
        self._lines[publisher, topic].acknowledged_s[number - 1] = at_s
        self._seen.acknowledged += 1

    def acknowledged_s(self, publisher: int, topic: str, number: int) -> float:
        """When it was acknowledged; infinity if it was not."""
        return self._lines[publisher, topic].acknowledged_s[number - 1]

    # --- what subscribers report

    def joined(self, subscriber: str, topics: Iterable[str], at_s: float) -> None:
        """`subscribe` has returned: everything published from now on is owed."""
        found = self._subscribers.setdefault(subscriber, _Subscriber(subscriber))
        found.joined_s.update(dict.fromkeys(topics, at_s))

    def all_leave(self, at_s: float) -> None:
        """All present subscribers are about to leave: they are not owed what is published from now on."""
        for found in self._subscribers.values():
            found.leaves_s = min(found.leaves_s, at_s)

    def saw(self, subscriber: str, events: Iterable[Event]) -> None:
        """What a subscriber got, in order."""
        by = self._subscribers[subscriber]
        for event in events:
            if type(event) is Message:
                self._message(by, event)
            elif type(event) is Gap:
                self._seen.gaps += 1
                by.views[event.publisher, event.topic].gaps.append((event.first, event.last))
            elif type(event) is Interrupted:
                self._interrupted(by, event)

    def _message(self, by: _Subscriber, message: Message) -> None:
        publisher, topic, number = message.publisher, message.topic, message.sequence
        if publisher is None or number is None or not self._was_published(by, message):
            self._seen.unexpected += 1
            self._example(f"{by.name} got a message that it should not have: {message}")
            return
        self.delivered += 1
        view = by.views[publisher, topic]
        spans = view.spans
        if spans and number == spans[-1][1] + 1:
            spans[-1] = (spans[-1][0], number)
        elif not spans or number > spans[-1][1]:
            spans.append((number, number))
        elif view.has(number):
            self._seen.duplicated += 1
            self._example(f"{by.name} got {topic} {publisher:x} #{number} again")
        else:
            self._seen.reordered += 1
            self._example(f"{by.name} got {topic} {publisher:x} #{number} after #{spans[-1][1]}")
            view.insert(number)

    def _was_published(self, by: _Subscriber, message: Message) -> bool:
        publisher, topic, number = message.publisher or 0, message.topic, message.sequence or 0
        line = self._lines.get((publisher, topic))
        return (
            line is not None
            and topic in by.joined_s
            and 0 < number <= len(line.published_s)
            and message.payload.startswith(stamp(publisher, topic, number))
        )

    def _interrupted(self, by: _Subscriber, event: Interrupted) -> None:
        key = (event.topic, event.since_s)
        if key not in by.interruptions:
            self._seen.interrupted += 1
            self._example(f"{by.name} was interrupted on {event.topic}: {event.reason}")
        by.interruptions[key] = event.until_s if event.until_s is not None else _NEVER

    def _example(self, text: str) -> None:
        if len(self._seen.examples) < EXAMPLES_MAX:
            self._seen.examples.append(text)

    # --- what the audit says

    @property
    def owed(self) -> int:
        """How many deliveries there should be in all, if all subscribers joined before the first message."""
        readers: dict[str, int] = defaultdict(int)
        for subscriber in self._subscribers.values():
            for topic in subscriber.joined_s:
                readers[topic] += 1
        return sum(len(line.published_s) * readers[topic] for (_, topic), line in self._lines.items())

    def verdict(self) -> Verdict:
        seen = self._seen
        verdict = Verdict(**{**vars(seen), "examples": list(seen.examples), "delivered": self.delivered})
        for subscriber in self._subscribers.values():
            for line, publications in self._lines.items():
                if line[1] in subscriber.joined_s:
                    self._judge(verdict, subscriber, line, publications)
        return verdict

    def _judge(self, verdict: Verdict, by: _Subscriber, line: Line, publications: _Publications) -> None:
        view = by.views.get(line, _View())
        for first, last in view.gaps:
            covered = sum(max(0, min(last, end) - max(first, begin) + 1) for begin, end in view.spans)
            verdict.gap_over_delivered += covered
            if covered:
                _note(verdict, f"{by.name}: the Gap {first}..{last} of {_name(line)} covers {covered} that arrived")
        for first, last in view.holes(len(publications.published_s)):
            owed = [number for number in range(first, last + 1) if _owed(by, line, publications, number)]
            place = _place(view, first)
            setattr(verdict, place, getattr(verdict, place) + len(owed))
            untold = [n for n in owed if not _told(by, view, line, publications, n, in_middle=place == "lost_middle")]
            verdict.untold += len(untold)
            if untold:
                shown = f"{by.name} misses {len(untold)} of {_name(line)} from #{untold[0]} on, {place}, not reported"
                _note(verdict, shown)


def _owed(by: _Subscriber, line: Line, publications: _Publications, number: int) -> bool:
    acknowledged = publications.acknowledged_s[number - 1] < _NEVER
    return acknowledged and by.joined_s[line[1]] < publications.published_s[number - 1] < by.leaves_s


def _place(view: _View, first: int) -> str:
    if view.spans and first > view.spans[-1][1]:
        return "lost_suffix"
    return "lost_prefix" if first == 1 else "lost_middle"


def _told(
    by: _Subscriber, view: _View, line: Line, publications: _Publications, number: int, *, in_middle: bool
) -> bool:
    if any(first <= number <= last for first, last in view.gaps):
        return True
    published_s, acknowledged_s = publications.published_s[number - 1], publications.acknowledged_s[number - 1]
    return not in_middle and by.interrupted(line[1], published_s, acknowledged_s)


def _name(line: Line) -> str:
    return f"{line[1]} {line[0]:x}"


def _note(verdict: Verdict, text: str) -> None:
    if len(verdict.examples) < EXAMPLES_MAX:
        verdict.examples.append(text)
