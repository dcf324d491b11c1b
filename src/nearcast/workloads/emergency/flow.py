"""The emergency workload for the flow simulator: which reports match which subscription, and how many bytes that gives.

Executions come at each multiple of a channel's period and see the reports since the previous one, and users where they
are at that moment. A row is as long as its report, plus a name and a number if it comes with a shelter.

`scale_world` is the same workload at scale, for the flow simulator only: the paper's simulation (section 6.2.1). It has
10,000 subscribers on 10 brokers, and 10 channels of 100 backend subscriptions each, with rates that rise and fall. It
has no reports: the bytes of an execution follow from the subscription's rate at that time and the period.
"""

from __future__ import annotations

import msgspec
import numpy as np

from nearcast.errors import UsageError
from nearcast.flow.gateways import GatewayWorld, Spans
from nearcast.flow.model import BoolArray, FloatArray, IntArray
from nearcast.workloads.emergency.city import KIND_NAMES, distance_m
from nearcast.workloads.emergency.scenario import (
    EMERGENCY_CHANNELS,
    PLACE_RADIUS_M,
    SHELTER_RADIUS_M,
    USER_RADIUS_M,
    Action,
    EmergencyChannel,
    EmergencyWorld,
    Interaction,
)

# --- with reports


SHELTER_BYTES = 40  # of a row: "shelter":"shelter 123","capacity":456 and so on
Wanted = tuple[str, tuple[tuple[str, str | float], ...]]  # channel and parameters: a backend subscription


def gateway_world(world: EmergencyWorld, brokers: int) -> GatewayWorld:
    """The scenario with this many brokers. Subscribers are where they were when they first logged in."""
    numbers, spans = _spans(world)
    arrival_s = np.zeros(world.settings.users)
    for event in reversed(world.scenario.events):
        if event.action is Action.LOGIN:
            arrival_s[_number(event.user)] = event.at_s
    positions = np.empty((world.settings.users, 2))
    for user in np.argsort(arrival_s, kind="stable").tolist():
        lats, lons = world.positions(float(arrival_s[user]))
        positions[user] = lats[user], lons[user]
    return GatewayWorld(
        broker_positions=_metric(world, np.stack(world.settings.city.broker_sites(brokers), axis=1)),
        positions=_metric(world, positions),
        arrival_s=arrival_s,
        spans=spans,
        result_bytes=_Results(world).table(list(numbers)),
    )


def _number(user: str) -> int:
    return int(user[1:])


def _metric(world: EmergencyWorld, degrees: FloatArray) -> FloatArray:
    """Positions with longitudes scaled to the city's latitude, so that distances are right."""
    return degrees * np.array([1.0, np.cos(np.radians(world.settings.city.latitude))])


def _wanted(event: Interaction) -> Wanted:
    return event.channel, tuple(event.parameters.items())


def _spans(world: EmergencyWorld) -> tuple[dict[Wanted, int], Spans]:
    """Backend subscriptions with their numbers, and the spans in which each user was online and had them."""
    numbers: dict[Wanted, int] = {}
    rows: list[tuple[int, int, int, int]] = []
    end = int(world.settings.seconds)
    online: set[int] = set()
    # User -> subscription -> since when.
    held: dict[int, dict[int, int]] = {user: {} for user in range(world.settings.users)}
    for event in world.scenario.events:
        user, at_s = _number(event.user), int(event.at_s)
        if event.action is Action.LOGIN:
            online.add(user)
            held[user] = dict.fromkeys(held[user], at_s)
        elif event.action is Action.SUBSCRIBE:
            held[user][numbers.setdefault(_wanted(event), len(numbers))] = at_s
        elif event.action is Action.UNSUBSCRIBE:
            number = numbers[_wanted(event)]
            since_s = held[user].pop(number)
            if user in online:
                rows.append((user, number, since_s, at_s))
        else:
            online.remove(user)
            rows += [(user, number, since_s, at_s) for number, since_s in held[user].items()]
    rows += [(user, number, since_s, end) for user in online for number, since_s in held[user].items()]
    columns = np.array(rows, dtype=np.int64).reshape(-1, 4).T
    return numbers, Spans(*columns)


class _Results:
    """Computes the bytes that the channels produce."""

    def __init__(self, world: EmergencyWorld) -> None:
        self._world = world
        self._reports = world.report_columns
        self._seconds = int(world.settings.seconds)
        reports, shelters = self._reports, world.shelters
        near = distance_m(reports.lat[:, None], reports.lon[:, None], shelters.lat, shelters.lon) < SHELTER_RADIUS_M
        self._plain = reports.size.astype(np.float64)
        self._with_shelters = near.sum(axis=1) * (reports.size + SHELTER_BYTES).astype(np.float64)
        self._of_kind = [reports.kind == kind for kind in range(len(KIND_NAMES))]
        self._seen: dict[int, tuple[IntArray, list[tuple[FloatArray, FloatArray]]]] = {}

    def table(self, wanted: list[Wanted]) -> FloatArray:
        """Bytes, a row per second and a column per backend subscription."""
        channels = {channel.name: channel for channel in EMERGENCY_CHANNELS}
        found = np.zeros((self._seconds, len(wanted)))
        for column, (name, parameters) in enumerate(wanted):
            channel = channels[name]
            rows, _ = self._executions(channel.period_s)
            sizes = self._with_shelters if channel.shelters else self._plain
            matched = self._matching(channel, dict(parameters))
            at_s = (rows[matched] + 1) * channel.period_s
            # Reports after the last execution belong to one that is no longer run.
            in_time = at_s < self._seconds
            np.add.at(found[:, column], at_s[in_time], sizes[matched][in_time])
        return found

    def _executions(self, period_s: int) -> tuple[IntArray, list[tuple[FloatArray, FloatArray]]]:
        """The execution that sees each report, and where users are at each execution."""
        if period_s not in self._seen:
            rows = (self._reports.at_s // period_s).astype(np.int64)
            count = self._seconds // period_s + 1
            places = [self._world.positions(float((row + 1) * period_s)) for row in range(count)]
            self._seen[period_s] = (rows, places)
        return self._seen[period_s]

    def _matching(self, channel: EmergencyChannel, parameters: dict[str, str | float]) -> BoolArray:
        reports = self._reports
        matched = np.ones(len(reports), dtype=np.bool_)
        if channel.by_kind:
            matched &= self._of_kind[KIND_NAMES.index(str(parameters["kind"]))]
        if channel.by_district:
            matched &= reports.district == self._world.settings.city.districts.index(str(parameters["district"]))
        if channel.by_place:
            place = np.array([parameters["lat"], parameters["lon"]], dtype=np.float64)
            matched &= distance_m(reports.lat, reports.lon, place[:1], place[1:]) < PLACE_RADIUS_M
        if channel.by_user:
            user = _number(str(parameters["user"]))
            rows, places = self._executions(channel.period_s)
            lat, lon = (np.array([place[axis][user] for place in places])[rows] for axis in (0, 1))
            matched &= distance_m(reports.lat, reports.lon, lat, lon) < USER_RADIUS_M
        return matched


# --- at scale


PERIODS_S = (5, 10, 20, 30, 60)  # 6.2.1; channel c has the one at index c modulo 5


class ScaleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers are from 6.2.1 unless noted otherwise."""

    brokers: int = 10
    subscribers: int = 10_000
    channels: int = 10
    per_channel: int = 100  # backend subscriptions
    wanted_min: int = 10  # subscriptions of one subscriber
    wanted_max: int = 30
    subscribe_s: int = 480
    seconds: int = 1800
    # The paper says Normal, but gives no figures. With these, the mean load of a broker passes beta, 300 MB/s, in the
    # fourth minute, when there are about half of the subscriptions, and ends at about twice that.
    rate_mean: float = 20e3  # bytes per second
    rate_deviation: float = 5e3  # between subscriptions, and between executions of one
    chosen_share: float = 0.25  # of the subscriptions, each minute
    rise_within_s: int = 180
    fall_after_s: tuple[int, int] = (240, 360)
    risen_factor: float = 2.0  # ours
    skew: float = 0.8  # ours: the people around broker n are proportional to n ** -skew; the first has over 2,000
    local_share: float = 0.0  # ours: about this share of a subscriber's choices is from its nearest broker's own part

    def __post_init__(self) -> None:
        if min(self.brokers, self.subscribers, self.channels, self.per_channel, self.seconds) < 1:
            raise UsageError("a simulation needs at least one broker, subscriber, channel, subscription and second")
        if not 1 <= self.wanted_min <= self.wanted_max <= self.channels * self.per_channel:
            raise UsageError("use 1 <= wanted_min <= wanted_max <= channels * per_channel")
        if not 0 <= self.local_share <= 1 or not 0 <= self.chosen_share <= 1:
            raise UsageError("local_share and chosen_share are shares: use 0 to 1")


def scale_world(settings: ScaleSettings, seed: int) -> GatewayWorld:
    """The paper's simulation; the same settings and seed give the same world."""
    sites = _on_a_circle(settings.brokers)
    near = _nearest_sites(settings, np.random.default_rng((seed, 11)))
    scatter = np.random.default_rng((seed, 12)).normal(0, 0.05, size=(settings.subscribers, 2))
    return GatewayWorld(
        broker_positions=sites,
        positions=sites[near] + scatter,
        arrival_s=np.zeros(settings.subscribers),  # all log in at the beginning
        spans=_drawn_spans(settings, near, np.random.default_rng((seed, 13))),
        result_bytes=_results(settings, np.random.default_rng((seed, 14))),
    )


def _on_a_circle(brokers: int) -> FloatArray:
    angle = 2 * np.pi * np.arange(brokers) / brokers
    return np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _nearest_sites(settings: ScaleSettings, dice: np.random.Generator) -> IntArray:
    shares = np.arange(1, settings.brokers + 1) ** -settings.skew
    return dice.choice(settings.brokers, size=settings.subscribers, p=shares / shares.sum())


def _drawn_spans(settings: ScaleSettings, near: IntArray, dice: np.random.Generator) -> Spans:
    """10 to 30 distinct backend subscriptions per subscriber, each with its own start and without an end."""
    width = settings.channels * settings.per_channel
    priority = dice.random((settings.subscribers, width), dtype=np.float32)
    if settings.local_share:
        _prefer_local(priority, near, settings, dice)
    counts = dice.integers(settings.wanted_min, settings.wanted_max + 1, size=settings.subscribers)
    first = np.argpartition(priority, settings.wanted_max - 1, axis=1)[:, : settings.wanted_max]
    order = np.take_along_axis(priority, first, axis=1).argsort(axis=1)
    chosen = np.take_along_axis(first, order, axis=1)[np.arange(settings.wanted_max) < counts[:, None]]
    subscriber = np.repeat(np.arange(settings.subscribers), counts)
    begin = dice.integers(settings.subscribe_s, size=len(subscriber))
    return Spans(subscriber, chosen.astype(np.int64), begin, np.full(len(subscriber), settings.seconds))


def _prefer_local(
    priority: np.ndarray[tuple[int, int], np.dtype[np.float32]],
    near: IntArray,
    settings: ScaleSettings,
    dice: np.random.Generator,
) -> None:
    """Give the share of local subscriptions lower numbers than the rest: lower numbers are taken first."""
    width = priority.shape[1]
    local = np.arange(width) % settings.brokers == near[:, None]
    expected = (settings.wanted_min + settings.wanted_max) / 2 * settings.local_share
    early = local & (dice.random(priority.shape, dtype=np.float32) < expected / (width / settings.brokers))
    priority[early] -= 1.0


def _results(settings: ScaleSettings, dice: np.random.Generator) -> FloatArray:
    width = settings.channels * settings.per_channel
    risen = _risen(settings, dice)
    means = dice.normal(settings.rate_mean, settings.rate_deviation, size=width).clip(settings.rate_mean / 10)
    found = np.zeros((settings.seconds, width))
    for channel in range(settings.channels):
        period_s = PERIODS_S[channel % len(PERIODS_S)]
        columns = slice(channel * settings.per_channel, (channel + 1) * settings.per_channel)
        at_s = np.arange(period_s, settings.seconds, period_s)
        factor = np.where(risen[at_s, columns], settings.risen_factor, 1.0)
        rates = dice.normal(means[columns] * factor, settings.rate_deviation).clip(0)
        found[at_s, columns] = rates * period_s
    return found


def _risen(settings: ScaleSettings, dice: np.random.Generator) -> BoolArray:
    """Each minute a quarter is chosen to rise; those that are rising, or have risen and not fallen, stay so."""
    width = settings.channels * settings.per_channel
    risen = np.zeros((settings.seconds, width), dtype=np.bool_)
    busy_until = np.zeros(width, dtype=np.int64)
    for minute_s in range(0, settings.seconds, 60):
        chosen = np.flatnonzero((dice.random(width) < settings.chosen_share) & (busy_until <= minute_s))
        rise_s = minute_s + dice.integers(1, settings.rise_within_s + 1, size=len(chosen))
        fall_s = rise_s + dice.integers(settings.fall_after_s[0], settings.fall_after_s[1] + 1, size=len(chosen))
        busy_until[chosen] = fall_s
        for column, begin, end in zip(chosen.tolist(), rise_s.tolist(), fall_s.tolist(), strict=True):
            risen[begin:end, column] = True
    return risen
