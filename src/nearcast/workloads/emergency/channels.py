"""The datasets and the seven channels of the emergency workload (section 6.1.2).

The paper names the parameters (event type, event location, user location) and the periods (10, 20, 30 s), but not the
queries. Here one description of a channel determines both its text and, in `flow.py`, which reports match.
"""

from __future__ import annotations

import msgspec

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
