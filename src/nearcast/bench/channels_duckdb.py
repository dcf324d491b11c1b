"""The same two questions in DuckDB, in the fastest SQL that we found for it.

Subscriptions are put together in lists first: a join with each of them takes three times as long. Near pairs are found
by a grid that is right for one city alone, which is cheaper than a grid of the whole sphere.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from nearcast.bench.channels_data import Made
from nearcast.pipeline.channels.geography import EARTH_RADIUS_M, MIN_CELL_DEGREES

_CELL_LON_DEGREES = 1.6 * MIN_CELL_DEGREES  # at the city's latitude about as wide as high
_REACH = 0.1  # of a cell, about 11 m: more than the radius of the distance channel


class DuckDb:
    """A connection in this process with so many threads."""

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
        """Whether two folders or files have the same rows, each as often; columns by name."""
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
    """Each set in every cell that its circle may touch."""
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
