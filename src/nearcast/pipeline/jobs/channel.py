"""One execution of a channel: read the inputs recorded when it was opened, run the query, write the results, commit.

It may stop at any point and be run again: its inputs are fixed, what it writes replaces what an earlier attempt wrote,
and the commit happens once.

`first_line` and `is_of_data` interpret a Spark failure: what it says in one line, and whether the data is the cause.
Spark's errors carry an SQLSTATE. Class 22 is "data exception" in the SQL standard (a division by zero, text that is not
a number), and P0001 is an error that the query raised itself (a limit). Trying again does not help against these. It
may against all others, from a full disk to a lost executor.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import pyarrow as pa

from nearcast.pipeline import storage as io
from nearcast.pipeline.catalog.catalog import Catalog
from nearcast.pipeline.catalog.channels import StoredChannel
from nearcast.pipeline.catalog.executions import Execution, Measures, Size
from nearcast.pipeline.channels.execution import Prepared, prepare
from nearcast.pipeline.channels.language import parse_channel
from nearcast.pipeline.channels.validation import SUBSCRIPTION_ID
from nearcast.pipeline.service.results import measured

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# --- what a failure means


_RAISED = "P0001"
_DATA = "22"
_LONGEST = 300


def first_line(error: BaseException) -> str:
    """The first line of the data error that caused it; if there is none, of the error itself."""
    cause = next((cause for cause in _causes(error) if _is_of_data(cause)), error)
    return (str(cause).partition("\n")[0] or type(cause).__name__)[:_LONGEST]


def is_of_data(error: BaseException) -> bool:
    return any(_is_of_data(cause) for cause in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = getattr(cause, "_cause", None)  # where pyspark keeps Java's cause


def _is_of_data(error: BaseException) -> bool:
    from pyspark.errors import PySparkException

    state = error.getSqlState() if isinstance(error, PySparkException) else None
    return state is not None and (state == _RAISED or state.startswith(_DATA))


# --- search by halving


T = TypeVar("T")

TRIES_AT_MOST = 200  # in one search: a few minutes


@dataclass(frozen=True)
class Halved(Generic[T]):
    """What `halved` found."""

    passed: list[Sequence[T]]
    suspects: list[T]  # each failed alone
    left: list[Sequence[T]]  # failed together, with no tries left for their halves


def halved(whole: Sequence[T], passes: Callable[[Sequence[T]], bool], most: int = TRIES_AT_MOST) -> Halved[T]:
    """Find the members that make a whole fail, by trying halves of it.

    A part that passes is done, one that fails is halved, and a single member that fails is a suspect. If nothing
    passes, there are no suspects: the cause is elsewhere, such as a full disk, and the search ends early. Shuffle the
    whole first: members that fail should not be next to each other.
    """
    passed: list[Sequence[T]] = []
    suspects: list[T] = []
    left = _halves(whole)
    without_success = 4 * len(whole).bit_length()  # enough to get down to one member, and to many beside it
    tries = 0
    while left and tries < (most if passed else min(most, without_success)):
        part = left.pop()
        tries += 1
        if passes(part):
            passed.append(part)
        elif len(part) == 1:
            suspects.append(part[0])
        else:
            left += _halves(part)
    return Halved(passed, suspects if passed else [], left)


def _halves(part: Sequence[T]) -> list[Sequence[T]]:
    middle = len(part) // 2
    return [half for half in (part[:middle], part[middle:]) if len(half) < len(part)] if middle else []


# --- the job


TRIES = 3  # of an execution, with all subscriptions together

log = logging.getLogger("nearcast.data")

Subscription = tuple[str, dict[str, Any]]  # id and parameters

# The JSON types of canonical parameters, which Spark casts to the declared types. All others are text.
_JSON_TYPES = {
    "BOOLEAN": pa.bool_(),
    **dict.fromkeys(("TINYINT", "SMALLINT", "INT", "BIGINT"), pa.int64()),
    **dict.fromkeys(("FLOAT", "DOUBLE"), pa.float64()),
}


class ChannelJob:
    """Runs the executions of one channel, one after another, and keeps what does not change between them.

    An execution that has failed a few times is done in parts, by subscriptions. Those that fail alone, while others
    pass, are set aside in the catalogue, and all others get their results. If nothing passes and the data is the cause,
    the execution is committed with the reason and without results, so that the channel can continue. Any other cause,
    such as a full disk, is waited out, and no subscription is blamed.
    """

    def __init__(self, spark: SparkSession, catalog: Catalog, channel: StoredChannel) -> None:
        self._spark = spark
        self._catalog = catalog
        self._channel = channel
        self._prepared: Prepared | None = None
        self._subscriptions: tuple[int, DataFrame] | None = None  # version, and its subscriptions
        self._failed = (0, 0)  # an execution, and how often it has failed

    def run(self, execution: Execution) -> bool:
        """Run and commit it; False if the channel was dropped or replaced meanwhile, and then nothing of it is kept."""
        began_s = time.monotonic()
        new_rows = self._catalog.new_rows(execution)
        folder = self._catalog.warehouse.results(execution.channel, execution.number)
        index: dict[str, Size] = {}
        plan = problem = ""
        if not self._bound().certainly_empty([name for name, rows in new_rows.items() if not rows]):
            try:
                plan = self._write(execution, folder)
            except Exception as error:  # Spark and py4j have many ways to fail
                if self._count_failure(execution) < TRIES:
                    raise
                problem = self._write_by_parts(execution, folder, error)
            index = measured(folder)
        newest_s = self._catalog.newest_s(execution)
        measures = Measures(
            rows_in=sum(new_rows.values()),
            rows_out=sum(size.rows for size in index.values()),
            seconds=time.monotonic() - began_s,
            latency_s=self._catalog.clock() - newest_s if newest_s is not None else None,
            problem=problem,
        )
        if not self._catalog.executions.commit(execution, index, measures, plan):
            io.remove(folder)
            return False
        return True

    def _count_failure(self, execution: Execution) -> int:
        number, times = self._failed
        self._failed = (execution.number, times + 1 if number == execution.number else 1)
        return self._failed[1]

    def _write(self, execution: Execution, folder: Path) -> str:
        """Write the results; returns the plan."""
        frame = self._results(execution, self._subscribed(execution.version))
        io.write(frame, folder)
        return plan_of(frame)

    def _write_by_parts(self, execution: Execution, folder: Path, error: Exception) -> str:
        """Write each part that passes to its own folder inside that of the results.

        Returns why there are no results; empty if there are. Raises the error if the search was not conclusive; what
        it has found so far is in the catalogue.
        """
        parts = _Parts(self, execution, folder)
        everybody = self._catalog.subscriptions.at(execution.channel, execution.version)
        random.Random(execution.number).shuffle(everybody)  # failing ones should not be next to each other
        found = halved(everybody, parts.passes)
        if not found.passed:
            parts.clear()
            if not is_of_data(error):
                raise error
            problem = f"execution {execution.number} was given up: it fails for every subscription: {first_line(error)}"
            log.error("channel %s: %s", execution.channel, problem)
            return problem
        if not self._set_aside(execution, found, parts) or found.left:
            parts.clear()
            raise error
        return ""

    def _set_aside(self, execution: Execution, found: Halved[Subscription], parts: _Parts) -> bool:
        """Set aside those that fail alone a second time, if others still pass after that; False if they do not."""
        culprits = {name: parts.problem for name, values in found.suspects if not parts.passes([(name, values)])}
        if culprits and not parts.passes(found.passed[0]):
            return False
        if not self._catalog.set_aside(execution, culprits):
            return True  # the channel was replaced or dropped meanwhile: nothing will be committed
        self._subscriptions = None
        for name, problem in culprits.items():
            log.error("channel %s: subscription %s fails and is set aside: %s", execution.channel, name, problem)
        return True

    def write_part(self, execution: Execution, part: Sequence[Subscription], folder: Path) -> None:
        io.write(self._results(execution, self._frame(part)), folder)

    def _results(self, execution: Execution, subscribed: DataFrame) -> DataFrame:
        datasets, inputs = self._catalog.datasets, execution.inputs
        new = {name: datasets.new(self._spark, name, after, upto) for name, (after, upto) in inputs.new.items()}
        whole = {name: datasets.whole(self._spark, name, upto) for name, upto in inputs.whole.items()}
        return self._bound().run(self._spark, subscribed, new, whole, execution.opened_s)

    def _bound(self) -> Prepared:
        """The prepared channel, prepared again when a dataset has gained a column."""
        names = (*self._channel.new_datasets, *self._channel.whole_datasets)
        schemas = {name: self._catalog.datasets.schema(name) for name in names}
        if self._prepared is None or self._prepared.schemas != schemas:
            self._prepared = prepare(parse_channel(self._channel.text), schemas)
        return self._prepared

    def _subscribed(self, version: int) -> DataFrame:
        if self._subscriptions is None or self._subscriptions[0] != version:
            self._subscriptions = (version, self._frame(self._catalog.subscriptions.at(self._channel.name, version)))
        return self._subscriptions[1]

    def _frame(self, rows: Sequence[Subscription]) -> DataFrame:
        from pyspark.sql import functions as F

        columns = {SUBSCRIPTION_ID: pa.array([name for name, _ in rows], pa.string())}
        for name, kind in self._channel.parameters.items():
            values = [parameters[name] for _, parameters in rows]
            columns[name] = pa.array(values, _JSON_TYPES.get(kind, pa.string()))
        typed = (F.col(name).cast(kind).alias(name) for name, kind in self._channel.parameters.items())
        return self._spark.createDataFrame(pa.table(columns)).select(SUBSCRIPTION_ID, *typed)


class _Parts:
    """Tries parts of an execution's subscriptions, and keeps the results of those that pass."""

    def __init__(self, job: ChannelJob, execution: Execution, folder: Path) -> None:
        self._job = job
        self._execution = execution
        self._folder = folder
        self.problem = ""  # of the last part that failed
        self.clear()

    def clear(self) -> None:
        io.remove(self._folder)

    def passes(self, part: Sequence[Subscription]) -> bool:
        folder = self._folder / f"from-{part[0][0]}"  # parts do not overlap; a retry overwrites its folder
        try:
            self._job.write_part(self._execution, part, folder)
        except Exception as error:
            io.remove(folder)
            self.problem = first_line(error)
            return False
        return True


def plan_of(frame: DataFrame) -> str:
    """Spark's physical plan of a frame, as text."""
    return str(frame._jdf.queryExecution().simpleString())
