"""The data cluster's folder on disk: its layout, how Parquet is written and read there, and schemas.

`Warehouse` is the layout. Nothing here is committed: a folder counts from the moment the catalogue names it.

A schema is what a user writes (`user_id STRING NOT NULL, lat DOUBLE`), checked, plus our own columns.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import socket
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from nearcast.errors import ClusterError, UsageError
from nearcast.pipeline.channels.language import DIALECT, NEW_SUFFIX, checked_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# --- folders and files


FILES_AT_MOST = 4  # in one write: a reader must open each, and read its footer


class Warehouse(msgspec.Struct, frozen=True):
    """The folders under one root. Numbers are padded so that names sort as the numbers do."""

    root: Path

    @property
    def catalog(self) -> Path:
        return self.root / "catalog.sqlite"

    def dataset(self, dataset: str) -> Path:
        return self.root / "datasets" / dataset

    def datasets(self) -> list[Path]:
        """The folders of all datasets, including those that the catalogue does not know."""
        return sorted((self.root / "datasets").glob("*"))

    def batch(self, dataset: str, number: int) -> Path:
        return self.dataset(dataset) / f"batch-{number:012}"

    def compacted(self, dataset: str, first: int, last: int) -> Path:
        return self.dataset(dataset) / f"compacted-{first:012}-{last:012}"

    def dead_letters(self, feed: str, number: int) -> Path:
        return self.root / "dead-letters" / feed / f"batch-{number:012}"

    def checkpoint(self, feed: str) -> Path:
        return self.root / "checkpoints" / feed

    def results(self, channel: str, execution: int) -> Path:
        return self.root / "results" / channel / f"execution-{execution:012}"

    def telemetry(self, table: str, number: int) -> Path:
        return self.root / "telemetry" / table / f"batch-{number:012}"

    def remove_others(self, folder: Path, kept: Collection[Path]) -> int:
        """Delete everything else in a folder, such as what a crash left behind; returns how many."""
        found = [path for path in folder.iterdir() if path not in kept] if folder.is_dir() else []
        for path in found:
            remove(path)
        return len(found)


class Written(msgspec.Struct, frozen=True):
    """What a write has put into its folder, as read back from there."""

    rows: int
    bytes: int


def write(frame: DataFrame, path: Path, files: int = FILES_AT_MOST) -> Written:
    """Write a frame as a folder of few Parquet files, replacing what is there.

    Returns when the files are on disk: the catalogue that names them survives a power cut, so they must too. Raises
    ClusterError if the number of rows here is not the number that the executors report.
    """
    from pyspark.sql import Observation
    from pyspark.sql import functions as F

    sent = Observation()
    counted = frame.observe(sent, F.count(F.lit(1)).alias("rows"))
    counted.coalesce(files).write.mode("overwrite").parquet(str(path))
    written = _found(path)
    if written.rows != sent.get["rows"]:
        raise ClusterError(
            f"Spark wrote {sent.get['rows']} rows to {path}, but {written.rows} are there: the folder must be on "
            "storage that all executors and this process share"
        )
    return written


def read(spark: SparkSession, ddl_schema: str, paths: Sequence[Path]) -> DataFrame:
    """The rows of these folders in one schema. A column that a file lacks is null; no folders give no rows."""
    if not paths:
        # With the limit, Spark knows that there are no rows before it starts a job.
        return spark.createDataFrame([], ddl_schema).limit(0)
    return spark.read.schema(ddl_schema).parquet(*map(str, paths))


def remove(path: Path) -> None:
    """Delete a folder or a file, if it exists."""
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _found(folder: Path) -> Written:
    """What the footers of the files say."""
    import pyarrow.parquet as pq

    found = sorted(folder.glob("*.parquet"))
    return Written(sum(pq.read_metadata(file).num_rows for file in found), sum(_synced(file) for file in found))


def _synced(file: Path) -> int:
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
        return os.fstat(opened.fileno()).st_size


# --- schemas


SCHEMA_CHARACTERS_MAX = 100_000
COLUMNS_MAX = 1000
BATCH = "_batch"  # the number of the batch that added a row: only in the files, readers do not see it

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_DATASET_NAME = re.compile(r"[a-z][a-z0-9_]{0,63}")
_FORM = "write it as in: user_id STRING NOT NULL, lat DOUBLE"


class Column(msgspec.Struct, frozen=True):
    """One column of a dataset."""

    name: str
    type: str  # as Spark writes it
    required: bool = False


# What a feed adds to each record: where it came from, when it was sent, and when a server kept it.
METADATA = (Column("_topic", "STRING"), Column("_published_at", "TIMESTAMP"), Column("_ingested_at", "TIMESTAMP"))

DEAD_LETTERS = (
    Column("kind", "STRING"),  # record: could not be read; gap: never received; loss: dropped from the stream unread
    Column("reason", "STRING"),
    Column("topic", "STRING"),
    Column("payload", "BINARY"),  # its beginning
    Column("publisher", "STRING"),
    Column("sequence", "STRING"),
    Column("published_at", "TIMESTAMP"),
    Column("ingested_at", "TIMESTAMP"),
)


@lru_cache(maxsize=256)
def parse_schema(ddl: str) -> tuple[Column, ...]:
    """The columns of a schema that a user wrote; raises UsageError."""
    columns = tuple(_column(node) for node in _definitions(ddl))
    if not columns:
        raise UsageError(f"the schema has no columns: {_FORM}")
    if len(columns) > COLUMNS_MAX:
        raise UsageError(f"the schema has {len(columns)} columns: give at most {COLUMNS_MAX}")
    names = [column.name.lower() for column in columns]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"the schema names {name} twice (case is ignored): rename one")
    return columns


def _definitions(ddl: str) -> list[exp.Expr]:
    shown = ddl if len(ddl) < 200 else f"{ddl[:200]}..."
    if len(ddl) > SCHEMA_CHARACTERS_MAX:
        raise UsageError(f"the schema has {len(ddl)} characters: give at most {SCHEMA_CHARACTERS_MAX}")
    try:
        parsed = parse_one(f"CREATE TABLE t (\n{ddl}\n)", dialect=DIALECT)
    except SqlglotError as error:
        raise UsageError(f"the schema {shown!r} cannot be read ({_reason(error)}): {_FORM}") from None
    except RecursionError:
        raise UsageError(f"the schema {shown!r} is nested too deeply: {_FORM}") from None
    if not isinstance(parsed, exp.Create) or not isinstance(parsed.this, exp.Schema) or parsed.args.get("expression"):
        raise UsageError(f"the schema {shown!r} is not a list of columns: {_FORM}")
    return list(parsed.this.expressions)


def ddl_of(columns: Iterable[Column]) -> str:
    """The inverse of `parse_schema`."""
    return ", ".join(f"`{column.name}` {column.type}{' NOT NULL' if column.required else ''}" for column in columns)


def nullable_ddl(columns: Iterable[Column]) -> str:
    """For files and frames: required columns were checked on the way in."""
    return ", ".join(f"`{column.name}` {column.type}" for column in columns)


def grown(name: str, before: Sequence[Column], after: Sequence[Column]) -> tuple[Column, ...]:
    """The columns of a dataset after a change of its schema; raises UsageError unless it only adds columns."""
    known = {column.name.lower(): column for column in before}
    added = [column for column in after if column.name.lower() not in known]
    for column in after:
        old = known.get(column.name.lower(), column)
        if (old.name, old.type) != (column.name, column.type):
            raise UsageError(
                f"dataset {name} has the column {old.name} {old.type}, which cannot become {column.name} "
                f"{column.type}: add a column with another name, or drop the dataset and create it again"
            )
    for column in added:
        if column.required and before:
            raise UsageError(f"the new column {column.name} is NOT NULL, but older records lack it: leave that out")
    return (*before, *added)


def checked_key(key: str, columns: Sequence[Column]) -> str:
    """The key under the name that the schema gives it; raises UsageError if there is no such column."""
    if not key:
        return ""
    found = [column for column in columns if column.name.lower() == key.lower()]
    if not found:
        there = ", ".join(column.name for column in columns)
        raise UsageError(f"the key {key!r} is not a column of the schema: use one of {there}")
    if "<" in found[0].type:
        raise UsageError(f"the key {key!r} is of type {found[0].type}: use a column of a plain type")
    return found[0].name


def checked_dataset_name(name: str) -> str:
    if not _DATASET_NAME.fullmatch(name):
        raise UsageError(f"bad name {name!r}: use at most 64 lower-case letters, digits and _, starting with a letter")
    if name.endswith(NEW_SUFFIX):
        raise UsageError(f"bad name {name!r}: choose one that does not end in {NEW_SUFFIX}, which is reserved")
    return name


def _column(node: exp.Expr) -> Column:
    kind = node.args.get("kind") if isinstance(node, exp.ColumnDef) else None
    if not isinstance(kind, exp.DataType):
        raise UsageError(f"{node.sql(DIALECT)!r} in the schema is not a column with a type: {_FORM}")
    if not _NAME.fullmatch(node.name):
        raise UsageError(f"bad column name {node.name!r}: use at most 64 letters, digits and _, starting with a letter")
    written = checked_type(node.name, kind)
    constraints = [constraint.kind for constraint in node.args.get("constraints") or ()]
    if not all(isinstance(found, exp.NotNullColumnConstraint) for found in constraints):
        raise UsageError(f"the column {node.name} has more than a type and NOT NULL: leave the rest out")
    return Column(node.name, written, required=bool(constraints))


def _reason(error: SqlglotError) -> str:
    return str(error).splitlines()[0].partition(". Line")[0]


# --- shared storage


TASKS_MOST = 64  # enough to reach every executor of a cluster that uses one folder


def require_shared(spark: SparkSession, folder: Path) -> None:
    """Check that executors see the folder; raises ClusterError, which names the hosts that do not.

    On a cluster of several machines the folder must be on shared storage. Otherwise Spark would not complain: each
    executor would write to its own disk, and the folder here would stay empty. So before any job is started, a few
    tasks are sent out to read a file and to write one.
    """
    mark = folder / f".nearcast-seen-{secrets.token_hex(8)}"
    mark.write_text(mark.name)
    context = spark.sparkContext
    tasks = min(TASKS_MOST, 2 * context.defaultParallelism)
    try:
        hosts = context.parallelize(range(tasks), tasks).map(_sees(str(mark))).collect()
        blind = {host for task, (host, sees) in enumerate(hosts) if not sees or not _trace(mark, task).exists()}
    finally:
        for path in (mark, *(_trace(mark, task) for task in range(tasks))):
            path.unlink(missing_ok=True)
    if blind:
        raise ClusterError(
            f"executors on {', '.join(sorted(blind))} cannot see {folder}, or we cannot see their files: give a "
            "--folder on storage that all machines of the cluster share under the same path"
        )


def _sees(mark: str) -> Callable[[int], tuple[str, bool]]:
    """The function that each task runs on its executor."""

    def look(task: int) -> tuple[str, bool]:
        if not os.path.exists(mark):
            return socket.gethostname(), False
        try:
            _trace(Path(mark), task).write_text(mark)
        except OSError:
            return socket.gethostname(), False
        return socket.gethostname(), True

    return look


def _trace(mark: Path, task: int) -> Path:
    return mark.with_name(f"{mark.name}.{task}")
