"""The emergency workload: an application that warns people of a city, after section 6.1.2 of the BAD paper.

H. Nguyen, M. Y. S. Uddin, N. Venkatasubramanian, "Multistage Adaptive Load Balancing for Big Active Data Publish
Subscribe Systems", DEBS 2019. Pure and seeded: the same settings and seed give the same people, walks, reports and
scenario, whether they are played live or in the flow simulator.

    world = emergency_world(EmergencySettings(speed=10), seed=1)
    world.scenario.events       login, logout, subscribe, unsubscribe, by time
    world.reports()             (at_s, topic, payload) by time, for the feed of emergency_reports
    world.locations(12.0)       (at_s, topic, payload) of everybody, for the feed of user_locations; ask each second
    world.shelters_csv()        for the static dataset
    DATASETS, CHANNELS          what the data cluster is told before

All times are seconds since the start of the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from nearcast.flow.demand import FloatArray
from nearcast.workloads.emergency_channels import CHANNELS, DATASETS
from nearcast.workloads.emergency_city import Crowd, Shelters
from nearcast.workloads.emergency_reports import Message, Reports
from nearcast.workloads.emergency_scenario import EmergencySettings, Scenario, user_name

__all__ = ["CHANNELS", "DATASETS", "EmergencySettings", "EmergencyWorld", "Scenario", "emergency_world"]

LOCATION_TOPIC = "location."


def emergency_world(settings: EmergencySettings, seed: int) -> EmergencyWorld:
    """The world of a scenario: the one that is in `Scenario.load(path)` needs its settings and seed."""
    return EmergencyWorld(settings, seed)


class EmergencyWorld:
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
        """Where everybody is, as records."""
        lats, lons = self.positions(at_s)
        for user, lat, lon in zip(self.users, lats.tolist(), lons.tolist(), strict=True):
            record = {"user_id": user, "lat": lat, "lon": lon, "at_s": at_s}
            yield Message(at_s, LOCATION_TOPIC + user, json.dumps(record, separators=(",", ":")).encode())

    def shelters_csv(self) -> str:
        return self.shelters.csv()
