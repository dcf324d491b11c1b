"""Made records and subscriptions of a city, as Parquet files: the same for the same sizes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SETS = 1000  # distinct parameter sets
KINDS = ("fire", "flood", "storm", "quake", "crash", "outage", "leak", "crowd")
DISTRICTS = 125_000  # with the kinds a million pairs: a set finds a millionth of the records
CITY = (52.5, 13.4)  # degrees
CROWDS = 12  # places around which people are
CITY_DEGREES = (0.06, 0.09)  # deviation of the crowds' centres: about 6.5 km
CROWD_DEGREES = (0.03, 0.045)  # deviation of a position from its crowd
LEVELS = 10
RECORDS_PER_FILE = 1_000_000
REPORTS_DDL = "id BIGINT, kind STRING, district INT, lat DOUBLE, lon DOUBLE, level INT"
EQUALITY_COLUMNS = ("kind", "district")
DISTANCE_COLUMNS = ("lat", "lon")

Progress = Callable[[str], None]


class Made(msgspec.Struct, frozen=True):
    """Where the files are."""

    reports: Path
    by_kind: Path  # subscriptions of the equality channel
    by_place: Path  # subscriptions of the distance channel
    sets: int


def made_files(folder: Path, records: int, subscriptions: int, progress: Progress, seed: int = 1) -> Made:
    """Subscriptions ask for what is in the first records, so that each finds something."""
    dice = np.random.default_rng(seed)
    reports = folder / "reports"
    reports.mkdir()
    crowds = dice.normal(0, CITY_DEGREES, size=(CROWDS, 2)) + CITY
    sets = min(SETS, subscriptions, records)
    for first in range(0, records, RECORDS_PER_FILE):
        progress(f"{first:,} of {records:,} records made")
        table = _records(dice, crowds, first, min(RECORDS_PER_FILE, records - first))
        pq.write_table(table, reports / f"part-{first:010}.parquet")
        if first == 0:
            wanted = table.slice(0, sets)
    which = np.concatenate([np.arange(sets), dice.integers(sets, size=subscriptions - sets)])
    made = Made(reports, folder / "by_kind.parquet", folder / "by_place.parquet", sets)
    _subscriptions(made.by_kind, wanted.select(EQUALITY_COLUMNS), which)
    _subscriptions(made.by_place, wanted.select(DISTANCE_COLUMNS), which)
    return made


def _records(dice: np.random.Generator, crowds: np.ndarray, first: int, count: int) -> pa.Table:
    places = crowds[dice.integers(CROWDS, size=count)] + dice.normal(0, CROWD_DEGREES, size=(count, 2))
    kinds = pa.DictionaryArray.from_arrays(pa.array(dice.integers(len(KINDS), size=count), pa.int8()), pa.array(KINDS))
    return pa.table(
        {
            "id": np.arange(first, first + count),
            "kind": kinds.cast(pa.string()),
            "district": dice.integers(DISTRICTS, size=count, dtype=np.int32),
            "lat": places[:, 0],
            "lon": places[:, 1],
            "level": dice.integers(LEVELS, size=count, dtype=np.int32),
        }
    )


def _subscriptions(file: Path, wanted: pa.Table, which: np.ndarray) -> None:
    names = pa.array([f"{file.stem}-{number:016x}" for number in range(len(which))])
    pq.write_table(wanted.take(pa.array(which)).add_column(0, "subscription_id", names), file)
