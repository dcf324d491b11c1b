"""The seven channels of the emergency workload on Spark, compared with a plain loop over reports and subscriptions."""

from __future__ import annotations

import csv
import json
import math
from typing import TYPE_CHECKING

from nearcast.pipeline.channels.language import NEW_SUFFIX, parse_channel
from nearcast.pipeline.channels.rewrite import SUBSCRIPTIONS, rewrite
from nearcast.workloads.emergency.scenario import (
    DATASETS,
    EMERGENCY_CHANNELS,
    Action,
    EmergencyChannel,
    EmergencySettings,
    EmergencyWorld,
    emergency_world,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AT_S = 600.0  # users are where they were then
SCHEMAS = {dataset.name: dataset for dataset in DATASETS}


def metres(one: tuple[float, float], other: tuple[float, float]) -> float:
    lat1, lon1, lat2, lon2 = (math.radians(value) for value in (*one, *other))
    root = math.sin((lat2 - lat1) / 2) ** 2
    root += math.cos(lat1) * math.cos(lat2) * math.sin((lon2 - lon1) / 2) ** 2
    return 2 * 6_371_008.8 * math.asin(math.sqrt(root))


def expected(
    channel: EmergencyChannel, wanted: list[dict], reports: list[dict], users: dict, shelters: list[dict]
) -> set[tuple[int, int, str]]:
    """(subscription, report, shelter or nothing)."""
    found = set()
    for number, parameters in enumerate(wanted):
        for report in reports:
            place = (report["lat"], report["lon"])
            if any(report[name] != parameters[name] for name in ("kind", "district") if name in parameters):
                continue
            if "lat" in parameters and metres(place, (parameters["lat"], parameters["lon"])) >= 800:
                continue
            if "user" in parameters and metres(place, users[parameters["user"]]) >= 1000:
                continue
            names = [""]
            if channel.shelters:
                names = [row["name"] for row in shelters if metres(place, (row["lat"], row["lon"])) < 300]
            found |= {(number, report["id"], name) for name in names}
    return found


def read(spark: SparkSession, world: EmergencyWorld) -> tuple[list[dict], dict, list[dict]]:
    """Makes the datasets known to Spark; gives them as plain Python too."""
    reports = [json.loads(message.payload) for message in world.reports()]
    places = [json.loads(message.payload) for message in world.locations(AT_S)]
    kinds = {"shelter_id": int, "name": str, "lat": float, "lon": float, "capacity": int}
    rows = csv.DictReader(world.shelters_csv().splitlines())
    shelters = [{name: kinds[name](value) for name, value in row.items()} for row in rows]
    for name, records in (("emergency_reports", reports), ("user_locations", places), ("shelters", shelters)):
        columns = list(SCHEMAS[name].columns)
        frame = spark.createDataFrame(
            [tuple(record[column] for column in columns) for record in records], SCHEMAS[name].schema
        )
        frame.createOrReplaceTempView(name + NEW_SUFFIX if name == "emergency_reports" else name)
    return reports, {place["user_id"]: (place["lat"], place["lon"]) for place in places}, shelters


def test_all_seven_give_what_a_plain_loop_gives(spark: SparkSession) -> None:
    world = emergency_world(EmergencySettings(users=60, reports=250), 11)
    reports, users, shelters = read(spark, world)
    schemas = {dataset.name: dataset.columns for dataset in DATASETS}
    total = 0
    for channel in EMERGENCY_CHANNELS:
        wanted = [
            event.parameters
            for event in world.scenario.events
            if event.action is Action.SUBSCRIBE and event.channel == channel.name
        ]
        columns = ", ".join(f"{name} {kind}" for name, kind in channel.parameters.items())
        rows = [(str(number), *(each[name] for name in channel.parameters)) for number, each in enumerate(wanted)]
        spark.createDataFrame(rows, f"subscription_id STRING, {columns}").createOrReplaceTempView(SUBSCRIPTIONS)
        found = spark.sql(rewrite(parse_channel(channel.text), schemas).sql()).collect()
        seen = [(int(row["subscription_id"]), row["id"], row["shelter"] if channel.shelters else "") for row in found]
        assert len(set(seen)) == len(seen), channel.name
        assert set(seen) == expected(channel, wanted, reports, users, shelters), channel.name
        assert seen, channel.name
        total += len(seen)
    assert total > 500
