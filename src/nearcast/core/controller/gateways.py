"""The gateways a leader knows: the newest report of each, their load, and which one a newcomer gets."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from math import cos, dist, inf, radians, sin
from random import Random

from nearcast.core.model.planning import SubscriberSnapshot, mean_rates
from nearcast.core.wire import bus
from nearcast.core.wire.probes import CHANGED_S, CHANGED_SHARE, LONGEST_S, differ

RATE_REPORTS = 15  # rates are means over this many: thirty seconds, to smooth out peaks (BAD, section 6.1.2)


class Gateway:
    """One gateway as its newest report shows it."""

    def __init__(self, report: bus.GatewayReport, heard_s: float, rates: deque[dict[str, float]]) -> None:
        self.report = report
        self.heard_s = heard_s
        self.rates = rates  # of the newest reports, including this one

    @cached_property
    def load(self) -> tuple[int, float, float]:
        """Backend subscriptions, I_j and O_j (equations 1-4), from its own rates. Computed only on demand."""
        rates = mean_rates(self.rates)
        counts = Counter(subscription for wanted in self.report.online.values() for subscription in wanted)  # n_jk
        incoming = sum(rates.get(subscription, 0.0) for subscription in counts)
        outgoing = sum(rates.get(subscription, 0.0) * count for subscription, count in counts.items())
        return len(counts), incoming, outgoing

    @property
    def load_bytes_per_s(self) -> float:
        """F_j (equation 5)."""
        _, incoming, outgoing = self.load
        return incoming + outgoing


class Gateways:
    """Soft state, not in the journal. A gateway is known from its first report on (the paper's registerbroker).

    It is forgotten after a time of silence.
    """

    def __init__(self, silence_s: float) -> None:
        self._silence_s = silence_s
        self._known: dict[str, Gateway] = {}  # ordered by last report, newest last

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, broker: str) -> bool:
        return broker in self._known

    def __getitem__(self, broker: str) -> Gateway:
        return self._known[broker]

    def names(self) -> list[str]:
        return sorted(self._known)

    def add(self, report: bus.GatewayReport, now_s: float) -> None:
        before = self._known.pop(report.broker, None)
        rates: deque[dict[str, float]] = before.rates if before is not None else deque(maxlen=RATE_REPORTS)
        rates.append(report.rates)
        self._known[report.broker] = Gateway(report, now_s, rates)

    def forget_silent(self, now_s: float) -> list[str]:
        """Forget those that have been silent for too long."""
        silent = [name for name, one in self._known.items() if now_s - one.heard_s > self._silence_s]
        for name in silent:
            del self._known[name]
        return silent

    def where(self, user: str) -> str | None:
        """The gateway where a user is online; if there are two, the one heard last. None if the user is offline."""
        for name, one in reversed(self._known.items()):
            if user in one.report.online:
                return name
        return None

    def online_at(self, user: str, broker: str) -> bool:
        return broker in self._known and user in self._known[broker].report.online

    def snapshot(self, brokers: Iterable[str], *, shuffle: bool = False) -> SubscriberSnapshot:
        chosen = {name: self._known[name] for name in sorted(brokers)}
        return SubscriberSnapshot(
            {name: one.report.online for name, one in chosen.items()},
            {name: tuple(one.rates) for name, one in chosen.items()},
            shuffle,
        )


# --- where a newcomer goes


RoundTrips = Mapping[str, float]  # seconds, by broker
NOT_MEASURED: RoundTrips = {}
# Where between the bounds an estimate is. Half of the way, a gateway that was not measured is hardly ever the nearest.
UPWARDS = 0.2


class AssignmentRule(StrEnum):
    """How the gateway of a newcomer is chosen."""

    NR = "nr"  # the nearest to the user
    RR = "rr"  # each in turn
    RND = "rnd"  # any
    LL = "ll"  # the one with the least load by the newest reports


class Assigner:
    """Decides where a newcomer goes before it has subscribed to anything: stage 1 of BAD, section 5.1.

    It handles one user at a time. `policies/multistage/policy.py` does the same for arrays of subscribers with NumPy,
    which a controller without a balancer does not need. A test checks that the two agree.
    """

    def __init__(self, rule: AssignmentRule, rng: Random) -> None:
        self._rule = rule
        self._rng = rng
        self._next = 0

    def choose(
        self,
        gateways: Mapping[str, Gateway],
        latitude: float | None,
        longitude: float | None,
        round_trips_s: RoundTrips = NOT_MEASURED,
    ) -> str:
        """Choose one of the gateways; there must be at least one. Among equals, the first by name.

        The nearest is the one with the shortest round trip, if any is known: measured or estimated. Otherwise it is
        unknown if the user, or every gateway, has no position. Then gateways are taken in turn.
        """
        names = sorted(gateways)
        if self._rule is AssignmentRule.NR and round_trips_s:
            return min(names, key=lambda name: round_trips_s.get(name, inf))
        if self._rule is AssignmentRule.RND:
            return self._rng.choice(names)
        if self._rule is AssignmentRule.LL:
            return min(names, key=lambda name: gateways[name].load_bytes_per_s)
        if self._rule is AssignmentRule.NR and latitude is not None and longitude is not None:
            sites = {name: site for name in names if (site := _site(gateways[name])) is not None}
            if sites:
                user = on_sphere(latitude, longitude)
                return min(sites, key=lambda name: dist(user, sites[name]))
        self._next += 1
        return names[(self._next - 1) % len(names)]

    def stays(self, home: str, round_trips_s: RoundTrips) -> bool:
        """Whether a user that has measured stays where it was, as nothing else is clearly nearer."""
        if self._rule is not AssignmentRule.NR or not round_trips_s:
            return True
        nearest_s, home_s = min(round_trips_s.values()), round_trips_s.get(home, inf)
        return not differ(home_s, nearest_s, CHANGED_S, CHANGED_SHARE)


def estimated_s(measured: RoundTrips, between: Mapping[str, RoundTrips], brokers: Iterable[str]) -> dict[str, float]:
    """The round trips of a user to these brokers: measured, or within what the triangle inequality allows.

    `between`: the round trips between brokers. A broker that is not known to be any distance from those is left out.
    """
    possible = {name: one_s for name, one_s in measured.items() if 0.0 < one_s <= LONGEST_S}
    found: dict[str, float] = {}
    for broker in brokers:
        apart = [(user_s, _apart_s(between, broker, name)) for name, user_s in possible.items()]
        bounds = [(abs(user_s - apart_s), user_s + apart_s) for user_s, apart_s in apart if apart_s is not None]
        if broker in possible:
            found[broker] = possible[broker]
        elif bounds:
            low_s, high_s = max(low_s for low_s, _ in bounds), min(high_s for _, high_s in bounds)
            found[broker] = low_s + UPWARDS * (high_s - low_s)
    return found


def _apart_s(between: Mapping[str, RoundTrips], one: str, other: str) -> float | None:
    both = (between.get(one, {}).get(other), between.get(other, {}).get(one))
    return min((seconds for seconds in both if seconds is not None), default=None)


def on_sphere(latitude: float, longitude: float) -> tuple[float, float, float]:
    """A point on the unit sphere. Straight-line distances there sort like distances on the ground."""
    north, east = radians(latitude), radians(longitude)
    return cos(north) * cos(east), cos(north) * sin(east), sin(north)


def _site(gateway: Gateway) -> tuple[float, float, float] | None:
    latitude, longitude = gateway.report.latitude, gateway.report.longitude
    return on_sphere(latitude, longitude) if latitude is not None and longitude is not None else None
