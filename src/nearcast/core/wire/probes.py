"""Probes: small datagrams that measure how far brokers are, and whom to send them to.

A probe and its answer have the same size, so nobody can use an agent to send more than it was sent. An answer repeats
the random number of its probe, so only whoever saw the probe can answer it. Agents answer, and measure each other;
clients only measure.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections import deque
from collections.abc import Iterable, Mapping
from random import Random

# --- datagrams


_FRAME = struct.Struct("<4sBxxxQ16x")  # what it is, probe or answer, number
_MAGIC = b"ncp1"
_PROBE, _ANSWER = 1, 2
DATAGRAM_BYTES = _FRAME.size


def probe(number: int) -> bytes:
    return _FRAME.pack(_MAGIC, _PROBE, number)


def answer_to(datagram: bytes) -> bytes | None:
    """The answer to a probe; None if it is none."""
    number = _number(datagram, _PROBE)
    return None if number is None else _FRAME.pack(_MAGIC, _ANSWER, number)


def _number(datagram: bytes, kind: int) -> int | None:
    if len(datagram) != DATAGRAM_BYTES:
        return None
    magic, found, number = _FRAME.unpack(datagram)
    return int(number) if (magic, found) == (_MAGIC, kind) else None


# --- one distance


SAMPLES = 5  # of which the second smallest counts: a process that was busy when an answer came measures too much
CONFIRM = 3  # samples in a row that must say that the distance has changed
CHANGED_S, CHANGED_SHARE = 2e-3, 0.25  # how far a sample is off if it says so
EVERY_S = 2.0  # between two probes of a broker
CALM = 10  # samples after a change, before a broker is probed less often: then one of all targets notices a move
CALM_EVERY_S = 4.0  # with as many targets as a client has; with fewer, more often
ALONE_EVERY_S = 8.0  # a broker that is the only one: there is nothing to choose
LONGEST_S = 10.0  # of a round trip: what takes longer is no answer


class Distance:
    """The round trip to one broker, or to a gateway's user, from its last samples."""

    def __init__(self) -> None:
        self.round_trip_s: float | None = None
        self._samples: deque[float] = deque(maxlen=SAMPLES)
        self._off: list[float] = []  # the newest samples, if they all say that the distance has changed
        self._steady = 0  # samples since it has changed
        self.answered_s = -math.inf

    @property
    def doubtful(self) -> bool:
        """Whether more samples are needed soon."""
        return self.changing or len(self._samples) < CONFIRM

    @property
    def changing(self) -> bool:
        """Whether the newest samples say that it has changed, but are too few to believe."""
        return bool(self._off)

    @property
    def calm(self) -> bool:
        return self._steady >= CALM and not self.changing

    def sample(self, round_trip_s: float, now_s: float) -> None:
        self.answered_s = now_s
        self._take(round_trip_s)
        ordered = sorted(self._samples)
        self.round_trip_s = ordered[min(1, len(ordered) - 1)]

    def _take(self, round_trip_s: float) -> None:
        known_s = self.round_trip_s
        if known_s is None or not differ(round_trip_s, known_s, CHANGED_S, CHANGED_SHARE):
            self._off.clear()
            self._samples.append(round_trip_s)
            self._steady += 1
            return
        self._off.append(round_trip_s)
        if len(self._off) >= CONFIRM:
            self._samples.clear()
            self._samples.extend(self._off)
            self._off.clear()
            self._steady = 0


def differ(one_s: float, other_s: float, least_s: float, share: float) -> bool:
    return abs(one_s - other_s) > max(least_s, share * other_s)


# --- all brokers


AGAIN_S = 0.15  # while its distance is in doubt
FORGET_S = 30.0  # what has not answered for so long is out of reach
TARGETS = 8  # brokers that are probed all the time: half are the same for everyone, half the nearest
UNANSWERED_MAX = 256  # or four of each target, if that is more: an answer may take a few rounds
NEWS_S, NEWS_SHARE = 1e-3, 0.1  # how far a distance must change to be told
HOLD_S = 1.5  # how long that is kept back at most while others are changing: half a move would mislead


class Prober:
    """Decides whom to probe when, and knows how far they are. Inputs: aim, answered, tick.

    Besides its targets it probes one other broker per round, in turn: it may be nearer than those it knows.
    """

    def __init__(self, rng: Random, targets: int = TARGETS) -> None:
        self.version = 0  # goes up when there is something new to tell
        self._rng = rng
        self._count = targets
        self._addresses: Mapping[str, str] = {}
        self._used: frozenset[str] = frozenset()
        self._sought: frozenset[str] = frozenset()
        self._distances: dict[str, Distance] = {}
        self._due_s: dict[str, float] = {}  # of targets
        self._probed_s: dict[str, float] = {}  # when each broker was last probed
        self._unanswered: dict[int, tuple[str, float]] = {}  # number -> broker, when it was sent
        self._explore_at_s = -math.inf
        self._hurried_s = -math.inf
        self._news = False  # some distance has changed that has not been told
        self._news_s: float | None = None  # the first tick that saw it
        self._told: dict[str, float] = {}

    @property
    def round_trips_s(self) -> dict[str, float]:
        """As last told: small changes since then do not count."""
        return self._told

    def aim(self, addresses: Mapping[str, str], used: Iterable[str] = (), sought: Iterable[str] = ()) -> None:
        """The brokers that answer probes, and where; those in use, which come first; and those probed in addition.

        A broker with another address is measured anew.
        """
        self._used = frozenset(used)
        self._sought = frozenset(sought)
        for name in [name for name, address in self._addresses.items() if addresses.get(name) != address]:
            self._news |= self._distances.pop(name, None) is not None
            self._probed_s.pop(name, None)
            self._due_s.pop(name, None)
        self._addresses = dict(addresses)
        self._choose()

    @property
    def next_s(self) -> float:
        """When the next tick is due. With news, soon: it is told as soon as nothing is changing."""
        return -math.inf if self._news else min((*self._due_s.values(), self._explore_at_s))

    def answered(self, datagram: bytes, now_s: float) -> None:
        number = _number(datagram, _ANSWER)
        broker, sent_s = self._unanswered.pop(number, ("", 0.0)) if number is not None else ("", 0.0)
        if broker in self._addresses and 0.0 <= now_s - sent_s <= LONGEST_S:
            distance = self._distances.setdefault(broker, Distance())
            distance.sample(now_s - sent_s, now_s)
            if distance.doubtful:
                self._hurry(broker, now_s)
            self._news |= _is_news(distance.round_trip_s, self._told.get(broker))

    def _hurry(self, broker: str, now_s: float) -> None:
        """One distance may have changed. Whoever moves changes them all; but one broker may as well be erratic."""
        names = self._due_s if now_s - self._hurried_s >= EVERY_S else self._due_s.keys() & {broker}
        if len(names) > 1:
            self._hurried_s = now_s
        for name in names:
            self._due_s[name] = min(self._due_s[name], now_s + AGAIN_S)

    def tick(self, now_s: float) -> list[tuple[str, bytes]]:
        """The probes to send now: address and datagram."""
        self._tell_when_sure(now_s)
        due = [name for name, due_s in self._due_s.items() if due_s <= now_s]
        if now_s >= self._explore_at_s:
            due += self._explore(now_s)
        return [(self._addresses[name], self._probe(name, now_s)) for name in due]

    def _explore(self, now_s: float) -> list[str]:
        """Once per round: who is out of reach now, who is a target now, and one other broker to look at."""
        self._explore_at_s = now_s + EVERY_S
        self._forget(now_s)
        self._choose()
        others = sorted(self._addresses.keys() - self._due_s.keys())
        return self._rng.sample(others, min(1, len(others)))

    def _probe(self, name: str, now_s: float) -> bytes:
        self._probed_s[name] = now_s
        if name in self._due_s:
            self._due_s[name] = now_s + self._interval_s(name)
        number = self._rng.getrandbits(64)
        self._unanswered[number] = (name, now_s)
        while len(self._unanswered) > max(UNANSWERED_MAX, 4 * len(self._due_s)):
            del self._unanswered[next(iter(self._unanswered))]
        return probe(number)

    def _interval_s(self, name: str) -> float:
        distance = self._distances.get(name)
        if distance is not None and distance.calm:
            return self._calm_every_s * self._rng.uniform(0.5, 1.5)  # not all targets at the same time
        return EVERY_S * self._rng.uniform(0.9, 1.1)

    @property
    def _calm_every_s(self) -> float:
        """With fewer targets each is probed more often, so that a move is noticed as soon."""
        targets = len(self._due_s)
        return ALONE_EVERY_S if targets == 1 else max(EVERY_S, CALM_EVERY_S * min(1.0, targets / TARGETS))

    def _choose(self) -> None:
        """The targets. Half are landmarks, the same for everyone: they make clients comparable. Half are nearest."""
        landmarks = landmarks_of(self._addresses, self._count - self._count // 2)
        others = self._addresses.keys() - landmarks
        nearest = sorted(others, key=lambda name: (name not in self._used, self._known_s(name), name))
        sought = sorted(self._sought & self._addresses.keys())
        targets = [*landmarks, *nearest[: self._count - len(landmarks)], *sought]
        self._due_s = {name: self._due_s.get(name, self._not_before_s(name)) for name in targets}

    def _not_before_s(self, name: str) -> float:
        """Of a new target. Whoever makes us choose others again and again does not make us probe more often."""
        return self._probed_s.get(name, -math.inf) + EVERY_S

    def _known_s(self, name: str) -> float:
        distance = self._distances.get(name)
        round_trip_s = distance.round_trip_s if distance is not None else None
        return math.inf if round_trip_s is None else round_trip_s

    def _forget(self, now_s: float) -> None:
        silent = [name for name, distance in self._distances.items() if now_s - distance.answered_s > FORGET_S]
        for name in silent:
            del self._distances[name]
        if silent:
            self._tell()

    def _tell_when_sure(self, now_s: float) -> None:
        if not self._news:
            return
        self._news_s = now_s if self._news_s is None else self._news_s
        changing = any(one.changing for one in self._distances.values())
        if not changing or now_s - self._news_s >= HOLD_S:
            self._tell()

    def _tell(self) -> None:
        self._news, self._news_s = False, None
        self._told = {name: one.round_trip_s for name, one in self._distances.items() if one.round_trip_s is not None}
        self.version += 1


def _is_news(round_trip_s: float | None, told_s: float | None) -> bool:
    if round_trip_s is None or told_s is None:
        return round_trip_s is not told_s
    return differ(round_trip_s, told_s, NEWS_S, NEWS_SHARE)


def landmarks_of(brokers: Iterable[str], count: int) -> list[str]:
    """The same few brokers for everyone who knows the same brokers."""
    return sorted(brokers, key=lambda name: (zlib.crc32(name.encode()), name))[:count]
