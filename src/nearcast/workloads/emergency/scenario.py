"""The emergency workload: an application that warns the people of a city, after section 6.1.2 of the BAD paper.

H. Nguyen, M. Y. S. Uddin, N. Venkatasubramanian, "Multistage Adaptive Load Balancing for Big Active Data Publish
Subscribe Systems", DEBS 2019. Pure and seeded: the same settings and seed give the same people, walks, reports and
scenario, whether they are played live or in the flow simulator.

    world = emergency_world(EmergencySettings(speed=10), seed=1)
    world.scenario.events       login, logout, subscribe, unsubscribe, by time
    world.reports()             (at_s, topic, payload) by time, for the feed of emergency_reports
    world.locations(12.0)       (at_s, topic, payload) of everybody, for the feed of user_locations; ask each second
    world.shelters_csv()        for the static dataset
    DATASETS, CHANNELS          what the data cluster needs before the run

All times are seconds since the start of the run. The paper names the channels' parameters (event type, event location,
user location) and periods (10, 20, 30 s), but not the queries. Here one description of a channel determines both its
text and, in `flow.py`, which reports match.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import msgspec
import numpy as np

from nearcast.errors import UsageError
from nearcast.flow.model import FloatArray
from nearcast.workloads.emergency.city import KIND_NAMES, City, Crowd, Message, Reports, Shelters

# --- datasets and channels


REPORTS, LOCATIONS, SHELTERS = "emergency_reports", "user_locations", "shelters"
PLACE_RADIUS_M = 800
USER_RADIUS_M = 1000
SHELTER_RADIUS_M = 300  # of a report: about two of 200 shelters in 25 square kilometres
ROW = "r.id, r.kind, r.district, r.lat, r.lon, r.severity, r.at_s, r.message"


class Dataset(msgspec.Struct, frozen=True, kw_only=True):
    """A dataset that the channels read."""

    name: str
    columns: dict[str, str]  # name -> Spark type
    topic: str = ""  # of its feed; a static dataset has none
    key: str = ""  # only the newest record of each key is kept

    @property
    def schema(self) -> str:
        """The columns, as in `CREATE TABLE`."""
        return ", ".join(f"{name} {kind}" for name, kind in self.columns.items())


DATASETS = (
    Dataset(
        name=REPORTS,
        columns={
            "id": "BIGINT",
            "kind": "STRING",
            "district": "STRING",
            "lat": "DOUBLE",
            "lon": "DOUBLE",
            "severity": "INT",
            "at_s": "DOUBLE",
            "message": "STRING",
        },
        topic="emergency.*",
    ),
    Dataset(
        name=LOCATIONS,
        columns={"user_id": "STRING", "lat": "DOUBLE", "lon": "DOUBLE", "at_s": "DOUBLE"},
        topic="location.*",
        key="user_id",
    ),
    Dataset(
        name=SHELTERS,
        columns={"shelter_id": "INT", "name": "STRING", "lat": "DOUBLE", "lon": "DOUBLE", "capacity": "INT"},
    ),
)


class EmergencyChannel(msgspec.Struct, frozen=True, kw_only=True):
    """Returns the reports that meet all its conditions; with shelters, one row for each shelter near a report."""

    name: str
    period_s: int
    by_kind: bool = False
    by_district: bool = False
    by_place: bool = False
    by_user: bool = False
    shelters: bool = False
    weight: float = 1.0  # how readily people choose it

    @property
    def parameters(self) -> dict[str, str]:
        found = {"kind": "STRING"} if self.by_kind else {}
        found |= {"district": "STRING"} if self.by_district else {}
        found |= {"lat": "DOUBLE", "lon": "DOUBLE"} if self.by_place else {}
        return found | ({"user": "STRING"} if self.by_user else {})

    @property
    def text(self) -> str:
        """The statement that creates the channel."""
        header = ", ".join(f"{name} {kind}" for name, kind in self.parameters.items())
        columns, sources, conditions = ROW, [f"FROM NEW {REPORTS} AS r"], []
        if self.by_user:
            sources.append(f"JOIN {LOCATIONS} AS u ON distance(r.lat, r.lon, u.lat, u.lon) < {USER_RADIUS_M}")
            conditions.append("u.user_id = :user")
        if self.shelters:
            columns += ", s.name AS shelter, s.capacity"
            sources.append(f"JOIN {SHELTERS} AS s ON distance(r.lat, r.lon, s.lat, s.lon) < {SHELTER_RADIUS_M}")
        conditions += ["r.kind = :kind"] if self.by_kind else []
        conditions += ["r.district = :district"] if self.by_district else []
        conditions += [f"distance(r.lat, r.lon, :lat, :lon) < {PLACE_RADIUS_M}"] if self.by_place else []
        lines = (
            f"CREATE CHANNEL {self.name}({header}) PERIOD {self.period_s} SECONDS AS",
            f"SELECT {columns}",
            *sources,
            f"WHERE {' AND '.join(conditions)}",
        )
        return "\n".join(lines)


# A subscription with a user's own location is never shared. People choose such channels less readily than others, so
# that 400 users have about 600 backend subscriptions, as in 6.1.2.
OWN_LOCATION = 0.3
EMERGENCY_CHANNELS = (
    EmergencyChannel(name="reports_of_kind", period_s=10, by_kind=True),
    EmergencyChannel(name="reports_in_district", period_s=20, by_district=True),
    EmergencyChannel(name="kind_in_district", period_s=20, by_kind=True, by_district=True),
    EmergencyChannel(name="reports_near_place", period_s=10, by_place=True),
    EmergencyChannel(name="shelters_near_place", period_s=30, by_kind=True, by_place=True, shelters=True),
    EmergencyChannel(name="reports_near_me", period_s=10, by_kind=True, by_user=True, weight=OWN_LOCATION),
    EmergencyChannel(
        name="shelters_near_me", period_s=30, by_kind=True, by_user=True, shelters=True, weight=OWN_LOCATION
    ),
)
CHANNELS = tuple(channel.text for channel in EMERGENCY_CHANNELS)


# --- people, reports and what happens when


# --- the scenario


LOGIN_S = (0.0, 240.0)  # everybody comes in the first four minutes (6.1.2)
SUBSCRIBE_S = (240.0, 480.0)  # and subscribes in the next four
CHANNELS_MAX = 5  # of one user, at least 1 (6.1.2)
SUBSCRIPTIONS_MAX = 3  # of one user and channel, at least 1 (6.1.2)
# The paper has logouts and unsubscriptions, but no figures for them.
LEAVE_S, AWAY_S, LEAVERS = (600.0, 1500.0), (30.0, 180.0), 0.1
UNSUBSCRIBE_S, UNSUBSCRIBED = (600.0, 1700.0), 0.05

Value = str | float
Parameters = dict[str, Value]


class EmergencySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes and times. Everything is `speed` times as fast as in the paper, except the periods of channels."""

    city: City = City()
    users: int = 400
    publishers: int = 8
    reports: int = 10_000
    shelters: int = 200
    scenario_s: float = 1800.0  # at speed 1
    speed: float = 1.0

    def __post_init__(self) -> None:
        if min(self.users, self.publishers, self.shelters) < 1 or self.reports < 0:
            raise UsageError("use at least one user, one publisher and one shelter; reports must not be negative")
        if self.scenario_s < UNSUBSCRIBE_S[1] or self.speed <= 0:
            raise UsageError(f"scenario_s must be at least {UNSUBSCRIBE_S[1]:.0f}: for a shorter run use speed above 1")

    @property
    def seconds(self) -> float:
        """The length of a run."""
        return self.scenario_s / self.speed


class Action(StrEnum):
    LOGIN = "login"
    LOGOUT = "logout"
    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"


class Interaction(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that a user does."""

    at_s: float  # since the start of the run
    user: str
    action: Action
    channel: str = ""
    parameters: Parameters = {}


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """Who logs in, subscribes, unsubscribes and logs out, and when (section 6.1.2).

    A scenario file is this as JSON. It includes the settings and the seed, so that reports and walks can be made again
    from it: `emergency_world(scenario.settings, scenario.seed)`.
    """

    settings: EmergencySettings
    seed: int
    events: tuple[Interaction, ...]  # in order of time

    @staticmethod
    def load(path: Path) -> Scenario:
        try:
            return msgspec.json.decode(path.read_bytes(), type=Scenario)
        except (OSError, msgspec.DecodeError) as error:
            raise UsageError(f"{path} is not a scenario file: {error}; make one with Scenario.save") from None

    def save(self, path: Path) -> None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")

    @staticmethod
    def made(settings: EmergencySettings, seed: int) -> Scenario:
        dice = np.random.default_rng((seed, 2))
        places = [(float(lat), float(lon)) for lat, lon in zip(*places_of(settings.city, seed), strict=True)]
        events = [
            event
            for number in range(settings.users)
            for event in _Person(user_name(number), settings, places, dice).events()
        ]
        events.sort(key=lambda event: event.at_s)  # stable: a user's own order is kept
        return Scenario(settings=settings, seed=seed, events=tuple(events))


def user_name(number: int) -> str:
    return f"u{number:05d}"


def places_of(city: City, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Latitudes and longitudes of the places that people ask about."""
    return city.points(city.places, (seed, 5))


class _Person:
    """Draws what one user does."""

    def __init__(
        self, name: str, settings: EmergencySettings, places: list[tuple[float, float]], dice: np.random.Generator
    ) -> None:
        self._name = name
        self._settings = settings
        self._places = places
        self._dice = dice

    def events(self) -> Iterator[Interaction]:
        yield self._event(self._time(LOGIN_S), Action.LOGIN)
        for channel in self._chosen_channels():
            for parameters in self._subscriptions(channel):
                yield self._event(self._time(SUBSCRIBE_S), Action.SUBSCRIBE, channel.name, parameters)
                if self._dice.random() < UNSUBSCRIBED:
                    yield self._event(self._time(UNSUBSCRIBE_S), Action.UNSUBSCRIBE, channel.name, parameters)
        if self._dice.random() < LEAVERS:
            left_s = self._time(LEAVE_S)
            yield self._event(left_s, Action.LOGOUT)
            yield self._event(left_s + self._time(AWAY_S), Action.LOGIN)

    def _event(
        self, at_s: float, action: Action, channel: str = "", parameters: Parameters | None = None
    ) -> Interaction:
        at_s = round(at_s / self._settings.speed, 3)
        return Interaction(at_s=at_s, user=self._name, action=action, channel=channel, parameters=parameters or {})

    def _time(self, span_s: tuple[float, float]) -> float:
        return float(self._dice.uniform(*span_s))

    def _chosen_channels(self) -> list[EmergencyChannel]:
        weights = np.array([channel.weight for channel in EMERGENCY_CHANNELS])
        count = self._dice.integers(1, CHANNELS_MAX + 1)
        numbers = self._dice.choice(len(weights), size=count, replace=False, p=weights / weights.sum())
        return [EMERGENCY_CHANNELS[number] for number in sorted(numbers.tolist())]

    def _subscriptions(self, channel: EmergencyChannel) -> list[Parameters]:
        """One to three sets of parameters; a set that is drawn twice counts once."""
        drawn = [self._parameters(channel) for _ in range(self._dice.integers(1, SUBSCRIPTIONS_MAX + 1))]
        return [parameters for place, parameters in enumerate(drawn) if parameters not in drawn[:place]]

    def _parameters(self, channel: EmergencyChannel) -> Parameters:
        found: Parameters = {}
        if channel.by_kind:
            found["kind"] = KIND_NAMES[self._dice.integers(len(KIND_NAMES))]
        if channel.by_district:
            districts = self._settings.city.districts
            found["district"] = districts[self._dice.integers(len(districts))]
        if channel.by_place:
            found["lat"], found["lon"] = self._places[self._dice.integers(len(self._places))]
        if channel.by_user:
            found["user"] = self._name
        return found


# --- the world


__all__ = ["CHANNELS", "DATASETS", "EmergencySettings", "EmergencyWorld", "Scenario", "emergency_world"]

LOCATION_TOPIC = "location."


def emergency_world(settings: EmergencySettings, seed: int) -> EmergencyWorld:
    """The world of these settings and this seed, such as those in a scenario file."""
    return EmergencyWorld(settings, seed)


class EmergencyWorld:
    """The people, reports, shelters and scenario of one seed."""

    def __init__(self, settings: EmergencySettings, seed: int) -> None:
        self.settings = settings
        self.seed = seed
        self.scenario = Scenario.made(settings, seed)
        self.shelters = Shelters.somewhere(settings.city, settings.shelters, seed)
        times = (settings.scenario_s, settings.speed)
        self.report_columns = Reports.seen(settings.city, settings.publishers, settings.reports, times, seed)
        self._people = Crowd(settings.city, settings.users, settings.city.on_foot, seed)

    @property
    def users(self) -> tuple[str, ...]:
        return tuple(user_name(number) for number in range(self.settings.users))

    def reports(self) -> Iterator[Message]:
        return self.report_columns.messages(self.settings.city)

    def positions(self, at_s: float) -> tuple[FloatArray, FloatArray]:
        """Latitudes and longitudes of all users, in their order."""
        return self._people.positions(at_s * self.settings.speed)

    def locations(self, at_s: float) -> Iterator[Message]:
        """The locations of all users, as messages."""
        lats, lons = self.positions(at_s)
        for user, lat, lon in zip(self.users, lats.tolist(), lons.tolist(), strict=True):
            record = {"user_id": user, "lat": lat, "lon": lon, "at_s": at_s}
            yield Message(at_s, LOCATION_TOPIC + user, json.dumps(record, separators=(",", ":")).encode())

    def shelters_csv(self) -> str:
        return self.shelters.csv()
