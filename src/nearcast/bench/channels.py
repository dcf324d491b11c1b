"""How long one execution of a channel takes, for an equality and for a distance.

It is compared with DuckDB, and with one query for each subscription. Both sides read the same Parquet files with the
same number of threads, and write their results as Parquet. The files are generated: records and subscriptions of a
city, the same for the same sizes. The sides take turns, so that the state of the machine affects both; the best round
of each counts.
"""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from sqlglot import exp

from nearcast.errors import UsageError
from nearcast.pipeline import storage as io
from nearcast.pipeline.channels.execution import Prepared, prepare, run_query
from nearcast.pipeline.channels.geography import EARTH_RADIUS_M, MIN_CELL_DEGREES
from nearcast.pipeline.channels.language import NEW_SUFFIX, parse_channel
from nearcast.pipeline.channels.rewrite import query_for_one
from nearcast.pipeline.spark import SessionSettings, open_session

# --- generated files


SETS = 1000  # distinct parameter sets
KINDS = ("fire", "flood", "storm", "quake", "crash", "outage", "leak", "crowd")
DISTRICTS = 125_000  # a million pairs with the kinds: a set finds a millionth of the records
CITY = (52.5, 13.4)  # degrees
CROWDS = 12  # places that people are around
CITY_DEGREES = (0.06, 0.09)  # deviation of the crowds' centres: about 6.5 km
CROWD_DEGREES = (0.03, 0.045)  # deviation of a position from its crowd
LEVELS = 10
RECORDS_PER_FILE = 1_000_000
REPORTS_DDL = "id BIGINT, kind STRING, district INT, lat DOUBLE, lon DOUBLE, level INT"
EQUALITY_COLUMNS = ("kind", "district")
DISTANCE_COLUMNS = ("lat", "lon")

Progress = Callable[[str], None]


class Made(msgspec.Struct, frozen=True):
    """Where the generated files are."""

    reports: Path
    by_kind: Path  # subscriptions of the equality channel
    by_place: Path  # subscriptions of the distance channel
    sets: int


def made_files(folder: Path, records: int, subscriptions: int, progress: Progress, seed: int = 1) -> Made:
    """Generate the files. Subscriptions ask for what is in the first records, so that each finds something."""
    dice = np.random.default_rng(seed)
    reports = folder / "reports"
    reports.mkdir()
    crowds = dice.normal(0, CITY_DEGREES, size=(CROWDS, 2)) + CITY
    sets = min(SETS, subscriptions, records)
    for first in range(0, records, RECORDS_PER_FILE):
        progress(f"generated {first:,} of {records:,} records")
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


# --- DuckDB


_CELL_LON_DEGREES = 1.6 * MIN_CELL_DEGREES  # about square at the city's latitude
_REACH = 0.1  # of a cell, about 11 m: more than the radius of the distance channel


class DuckDb:
    """Answers the same two questions, in the fastest SQL that we found for DuckDB, in this process.

    Subscriptions are first collected in lists: a join with each of them takes three times as long. Near pairs are found
    with a grid that is only right for one city, which is cheaper than a grid of the whole sphere.
    """

    def __init__(self, threads: int) -> None:
        import duckdb

        self._connection: Any = duckdb.connect()
        self._connection.execute(f"SET threads = {threads}")
        self._connection.execute("SET enable_progress_bar = false")

    @staticmethod
    def is_installed() -> bool:
        return importlib.util.find_spec("duckdb") is not None

    def equality(self, made: Made, target: Path) -> None:
        self._copy(
            f"""
            WITH sets AS MATERIALIZED (
              SELECT kind, district, list(subscription_id) AS members FROM '{made.by_kind}' GROUP BY ALL)
            SELECT unnest(s.members) AS subscription_id, r.*
            FROM '{made.reports}/*.parquet' AS r JOIN sets AS s ON r.kind = s.kind AND r.district = s.district""",
            target,
        )

    def distance(self, made: Made, radius_m: float, target: Path) -> None:
        self._copy(
            f"""
            WITH {_cells(made)},
            matches AS (
              SELECT r.id, r.kind, r.lat, r.lon, r.level, c.name FROM '{made.reports}/*.parquet' AS r
              JOIN cells AS c ON {_MEET} AND {_haversine_m("r", "c")} < {radius_m})
            SELECT unnest(s.members) AS subscription_id, m.* EXCLUDE (name)
            FROM matches AS m JOIN sets AS s ON m.name = s.name""",
            target,
        )

    def near_pairs(self, made: Made) -> int:
        """How many pairs of a record and a parameter set meet in a cell of the grid."""
        sql = f"WITH {_cells(made)} SELECT count(*) FROM '{made.reports}/*.parquet' AS r JOIN cells AS c ON {_MEET}"
        (count,) = self._connection.execute(sql).fetchone()
        return int(count)

    def same_rows(self, one: Path, other: Path) -> bool:
        """Whether two folders or files have the same rows, each equally often. Columns are matched by name."""
        left, right = (f"SELECT * FROM '{_files(path)}'" for path in (one, other))
        sql = f"SELECT count(*) FROM (({left} EXCEPT ALL {_by_name(right, self._columns(left))}))"
        (missing,) = self._connection.execute(sql).fetchone()
        counts = [self._connection.execute(f"SELECT count(*) FROM ({rows})").fetchone() for rows in (left, right)]
        return not missing and counts[0] == counts[1]

    def _columns(self, rows: str) -> list[str]:
        return [column[0] for column in self._connection.execute(f"{rows} LIMIT 0").description]

    def _copy(self, sql: str, target: Path) -> None:
        self._connection.execute(f"COPY ({sql}) TO '{target}' (FORMAT parquet, COMPRESSION snappy)")


def _by_name(rows: str, columns: list[str]) -> str:
    return f"SELECT {', '.join(columns)} FROM ({rows})"


def _files(path: Path) -> str:
    return f"{path}/*.parquet" if path.is_dir() else str(path)


_MEET = f"""floor(r.lat / {MIN_CELL_DEGREES})::INT = c.cell_row
            AND floor(r.lon / {_CELL_LON_DEGREES})::INT = c.cell_column"""


def _cells(made: Made) -> str:
    """SQL that puts each set into every cell that its circle may touch."""
    return f"""
    sets AS MATERIALIZED (
      SELECT lat, lon, list(subscription_id) AS members, row_number() OVER () AS name
      FROM '{made.by_place}' GROUP BY ALL),
    cells AS MATERIALIZED (
      SELECT lat, lon, name, cell_row, unnest({_range("lon", _CELL_LON_DEGREES)}) AS cell_column
      FROM (SELECT *, unnest({_range("lat", MIN_CELL_DEGREES)}) AS cell_row FROM sets))"""


def _range(column: str, cell_degrees: float) -> str:
    ends = (f"floor(({column} {sign} {_REACH * cell_degrees}) / {cell_degrees})::INT" for sign in "-+")
    first, last = ends
    return f"generate_series({first}, {last})"


def _haversine_m(one: str, other: str) -> str:
    return f"""{2 * EARTH_RADIUS_M} * asin(sqrt(least(1.0,
      power(sin(radians({other}.lat - {one}.lat) / 2), 2) + cos(radians({one}.lat)) * cos(radians({other}.lat))
      * power(sin(radians({other}.lon - {one}.lon) / 2), 2))))"""


# --- the measurement


THREADS = 2
DRIVER_MEMORY_BYTES = 4 << 30
RADIUS_M = 7.0  # about 1 % of the pairs that meet in a cell of 111 m match
OVERHEAD_ROUNDS = 3  # for each round; they are short
RECORDS_MIN = 1000
SUBSCRIPTIONS_MIN = 20

EQUALITY = """CREATE CHANNEL by_kind(kind STRING, district INT) PERIOD 10 SECONDS AS
SELECT r.* FROM NEW reports AS r WHERE r.kind = :kind AND r.district = :district"""
DISTANCE = f"""CREATE CHANNEL by_place(lat DOUBLE, lon DOUBLE) PERIOD 10 SECONDS AS
SELECT r.id, r.kind, r.lat, r.lon, r.level FROM NEW reports AS r
WHERE distance(r.lat, r.lon, :lat, :lon) < {RADIUS_M}"""
SCHEMAS = {"reports": dict(column.split(" ") for column in REPORTS_DDL.split(", "))}


class Written(msgspec.Struct, frozen=True):
    """The size of an execution's result, from the footers of its files."""

    rows: int
    bytes: int
    files: int


class ChannelsBench(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one run."""

    records: int
    subscriptions: int
    parameter_sets: int
    threads: int
    rounds: int  # the best of this many
    equality_s: float
    distance_s: float
    equality_output: Written
    distance_output: Written
    radius_m: float
    pairs_in_cells: int | None  # of a record and a parameter set
    pairs_matching_share: float | None
    naive_equality_s_estimated: float  # one query for each subscription
    naive_sets_s_estimated: float  # one query for each parameter set
    ratio_naive: float
    ratio_naive_sets: float
    duckdb_equality_s: float | None
    duckdb_distance_s: float | None
    ratio_equality: float | None  # our time / DuckDB's
    ratio_distance: float | None
    identical: bool  # to DuckDB's results row for row, and to the sample of single queries
    overhead_s: float  # of an execution that Spark runs although there are no new records: the longer of the two
    overhead_equality_s: float
    overhead_distance_s: float
    prepare_s: float  # of the distance channel; done once for many executions


def measure_channels(
    records: int, subscriptions: int, *, rounds: int = 3, sample: int = 20, progress: Progress = lambda _: None
) -> ChannelsBench:
    """Measure all sides. As many warm-up rounds come first, because Java compiles what runs often.

    `sample`: how many single queries to run.
    """
    if records < RECORDS_MIN or subscriptions < SUBSCRIPTIONS_MIN:
        raise UsageError(f"give at least {RECORDS_MIN} records and {SUBSCRIPTIONS_MIN} subscriptions")
    settings = SessionSettings(
        master=f"local[{THREADS}]",
        app_name="nearcast-bench",
        driver_memory_bytes=DRIVER_MEMORY_BYTES,
        shuffle_partitions=THREADS,
        conf={"spark.driver.extraJavaOptions": "-XX:+UseParallelGC"},  # best for batches, where pauses do not matter
    )
    with tempfile.TemporaryDirectory(prefix="nearcast-bench-") as name:
        made = made_files(Path(name), records, subscriptions, progress)
        progress("starting Spark")
        with open_session(settings) as spark:
            return _Run(spark, made, Path(name), rounds, progress).measure(records, subscriptions, sample)


class _Run:
    """One run over generated files: each side's question is a function that writes one result."""

    def __init__(self, spark: Any, made: Made, folder: Path, rounds: int, progress: Progress) -> None:
        self._spark = spark
        self._made = made
        self._folder = folder
        self._rounds = rounds
        self._progress = progress
        self._duckdb = DuckDb(THREADS) if DuckDb.is_installed() else None
        self._equality = prepare(parse_channel(EQUALITY), SCHEMAS)
        began_s = time.perf_counter()
        self._distance = prepare(parse_channel(DISTANCE), SCHEMAS)
        self._prepare_s = time.perf_counter() - began_s

    def measure(self, records: int, subscriptions: int, sample: int) -> ChannelsBench:
        best = self._best_of_rounds()
        overheads = [self._overhead_s(*side) for side in self._sides()]
        naive_s, naive_same = self._naive(sample)
        duckdb_equality_s, duckdb_distance_s = best.get("duckdb equality"), best.get("duckdb distance")
        pairs = self._duckdb.near_pairs(self._made) if self._duckdb else None
        return ChannelsBench(
            records=records,
            subscriptions=subscriptions,
            parameter_sets=self._made.sets,
            threads=THREADS,
            rounds=self._rounds,
            equality_s=best["equality"],
            distance_s=best["distance"],
            equality_output=written(self._folder / "equality"),
            distance_output=written(self._folder / "distance"),
            radius_m=RADIUS_M,
            pairs_in_cells=pairs,
            pairs_matching_share=self._matching() / pairs if pairs else None,
            naive_equality_s_estimated=naive_s * subscriptions,
            naive_sets_s_estimated=naive_s * self._made.sets,
            ratio_naive=naive_s * subscriptions / best["equality"],
            ratio_naive_sets=naive_s * self._made.sets / best["equality"],
            duckdb_equality_s=duckdb_equality_s,
            duckdb_distance_s=duckdb_distance_s,
            ratio_equality=best["equality"] / duckdb_equality_s if duckdb_equality_s else None,
            ratio_distance=best["distance"] / duckdb_distance_s if duckdb_distance_s else None,
            identical=naive_same and self._same_as_duckdb(),
            overhead_s=max(overheads),
            overhead_equality_s=overheads[0],
            overhead_distance_s=overheads[1],
            prepare_s=self._prepare_s,
        )

    def _sides(self) -> tuple[tuple[Prepared, Path], tuple[Prepared, Path]]:
        return (self._equality, self._made.by_kind), (self._distance, self._made.by_place)

    def _best_of_rounds(self) -> dict[str, float]:
        """The best time of each side, in seconds."""
        folder, made = self._folder, self._made
        sides: dict[str, Callable[[], object]] = {
            "equality": lambda: self._execute(self._equality, made.by_kind, [made.reports], folder / "equality"),
            "distance": lambda: self._execute(self._distance, made.by_place, [made.reports], folder / "distance"),
        }
        if self._duckdb:
            duckdb = self._duckdb
            sides["duckdb equality"] = lambda: duckdb.equality(made, folder / "duckdb_equality.parquet")
            sides["duckdb distance"] = lambda: duckdb.distance(made, RADIUS_M, folder / "duckdb_distance.parquet")
        took: dict[str, list[float]] = {name: [] for name in sides}
        for number in range(2 * self._rounds):
            for name, ask in sides.items():
                took[name].append(_timed(ask))
            self._progress(f"round {number + 1}: " + ", ".join(f"{name} {s[-1]:.2f} s" for name, s in took.items()))
        return {name: min(seconds[self._rounds :]) for name, seconds in took.items()}

    def _execute(self, prepared: Prepared, subscriptions: Path, reports: list[Path], target: Path) -> None:
        frame = prepared.run(
            self._spark,
            self._spark.read.parquet(str(subscriptions)),
            {"reports": io.read(self._spark, REPORTS_DDL, reports)},
            {},
        )
        io.write(frame, target)

    def _overhead_s(self, prepared: Prepared, subscriptions: Path) -> float:
        target = self._folder / "nothing"
        rounds = range(OVERHEAD_ROUNDS * self._rounds)
        took = [_timed(lambda: self._execute(prepared, subscriptions, [], target)) for _ in rounds]
        self._progress(f"without new records: {min(took):.2f} s")
        return min(took)

    def _naive(self, sample: int) -> tuple[float, bool]:
        """How long one query for one subscription takes, in seconds, and whether a sample has the same rows as ours."""
        asked = pq.read_table(self._made.by_kind).slice(0, self._rounds + sample).to_pylist()
        took, same, target = [], True, self._folder / "one"
        for number, subscription in enumerate(asked):
            took.append(_timed(partial(self._ask_one, subscription, target)))
            mine = pads.dataset(self._folder / "equality").to_table(
                filter=pads.field("subscription_id") == subscription["subscription_id"]
            )
            alone = pads.dataset(target).to_table()
            same = same and sorted(mine["id"].to_pylist()) == sorted(alone["id"].to_pylist())
            if number % 5 == 0:
                self._progress(f"single query {number + 1} of {len(asked)}: {took[-1]:.2f} s")
        return median(took[self._rounds :]), same

    def _ask_one(self, values: dict[str, Any], target: Path) -> None:
        channel = self._equality.channel
        literals = {name: exp.convert(values[name]) for name in channel.parameters}
        reports = io.read(self._spark, REPORTS_DDL, [self._made.reports])
        query = query_for_one(channel, SCHEMAS, literals)
        io.write(run_query(self._spark, query, {"reports" + NEW_SUFFIX: reports}), target)

    def _matching(self) -> int:
        """Pairs of a record and a set within the radius: the rows of the first subscription of each set."""
        first = pq.read_table(self._made.by_place, columns=["subscription_id"])["subscription_id"][: self._made.sets]
        found = pads.dataset(self._folder / "distance").filter(pads.field("subscription_id").isin(first.to_pylist()))
        return int(found.count_rows())

    def _same_as_duckdb(self) -> bool:
        if self._duckdb is None:
            return True
        self._progress("comparing results")
        return all(
            self._duckdb.same_rows(self._folder / name, self._folder / f"duckdb_{name}.parquet")
            for name in ("equality", "distance")
        )


def written(folder: Path) -> Written:
    files = list(folder.glob("*.parquet"))
    rows = sum(pq.read_metadata(file).num_rows for file in files)
    return Written(rows, sum(file.stat().st_size for file in files), len(files))


def _timed(ask: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    ask()
    return time.perf_counter() - began_s
