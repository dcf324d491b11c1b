"""What is new in logs as a Spark source, for streaming: `spark.readStream.format("nearcast_logs")`.

Options:
    url                 of the store's server
    logs                their keys, separated by commas
    startingPositions   JSON `{"stream": 12}`: how much was read before, of parts that the checkpoint does not know
                        yet; default: nothing
    maxMessagesPerBatch of all parts together (default 500,000)
    tasks               into how many tasks a batch is divided at most (default 2)

The rows are ranges of messages, not messages: a part, the server that has it, and two positions. Each partition is
meant for one task, which reads the messages itself (`ingest/task.py`), so no message passes through Java. Nothing is
written to the servers. A range is the same when its batch runs again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from nearcast.core.model.logs import PartState
from nearcast.errors import ClusterError, UsageError
from nearcast.pipeline.sources.parts import Extent, Part, extents, journalled_membership, log_of, parts_of
from nearcast.pipeline.sources.positions import PartRange, advanced, ranges, tasks
from nearcast.pipeline.sources.server import RespConnection
from nearcast.runtime.driver import parse_url

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

SCHEMA = "stream STRING, url STRING, after BIGINT, upto BIGINT"
DEFAULT_MAX_MESSAGES = 500_000
DEFAULT_TASKS = 2

log = logging.getLogger(__name__)


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The checked options, as `parse_options` returns them."""

    url: str
    logs: frozenset[str]
    starting: dict[str, int] = {}
    max_messages: int = DEFAULT_MAX_MESSAGES
    tasks: int = DEFAULT_TASKS


def parse_options(given: Mapping[str, str]) -> Options:
    """The options, checked; raises UsageError, which names the option and what it takes."""
    for required in ("url", "logs"):
        if not given.get(required):
            raise UsageError(f"the option {required!r} of nearcast_logs is missing")
    numbers = {name: given.get(name) or "" for name in ("maxMessagesPerBatch", "tasks")}
    for name, number in numbers.items():
        if number and not (number.isdecimal() and int(number) > 0):
            raise UsageError(f"{name} is {number!r}: give a number of at least 1")
    try:
        starting = msgspec.json.decode(given.get("startingPositions") or "{}", type=dict[str, int])
    except msgspec.MsgspecError as error:
        raise UsageError(f'startingPositions ({error}): give JSON like {{"stream": 12}}') from None
    return Options(
        url=given["url"],
        logs=frozenset(given["logs"].split(",")),
        starting=starting,
        max_messages=int(numbers["maxMessagesPerBatch"] or DEFAULT_MAX_MESSAGES),
        tasks=int(numbers["tasks"] or DEFAULT_TASKS),
    )


class NearcastLogs(DataSource):
    """The data source. Spark creates it, pickles it and asks it for a reader."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._options = parse_options(options)

    @classmethod
    def name(cls) -> str:
        return "nearcast_logs"

    def schema(self) -> str:
        return SCHEMA

    def streamReader(self, schema: StructType) -> LogsReader:
        return LogsReader(self._options)


class LogsReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches on the driver, in one process that lives as long as the query."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._servers: Servers | None = None
        self._targets: dict[str, int] | None = None  # where to stop, when Spark wants only what is there now

    def initialOffset(self) -> dict[str, int]:
        return {}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_messages)

    def prepareForTriggerAvailableNow(self) -> None:
        self._targets = {stream: extent.last if extent else 0 for stream, extent in self._kept().items()}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        if not isinstance(limit, ReadMaxRows | ReadAllAvailable):
            raise UsageError(f"nearcast_logs does not know the limit {limit}: use maxMessagesPerBatch")
        kept = self._kept()
        if self._targets is not None:
            kept = {stream: _until(kept[stream], target) for stream, target in self._targets.items() if stream in kept}
        begins = {stream: start[stream] for stream in start if not self._opened().is_gone(stream)}
        begins = {stream: self._options.starting.get(stream, 0) for stream in kept} | begins
        return advanced(begins, kept, limit.max_rows if isinstance(limit, ReadMaxRows) else None)

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Each range with the server that has it now. Of one that nobody has, all messages are lost."""
        parts = self._opened().parts()
        wanted = ranges(self._options.starting | start, end)
        for part in (parts[each.stream] for each in wanted if each.stream in parts):
            if part.state is PartState.SEALING:
                raise ClusterError(f"{part.life} has ended, and its replicas are being sealed: try again in a moment")
        urls = {each.stream: parts[each.stream].url if each.stream in parts else "" for each in wanted}
        groups = tasks(wanted, self._options.tasks)
        return [InputPartition([(each, urls[each.stream]) for each in group]) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[tuple[str, str, int, int]]:
        found: list[tuple[PartRange, str]] = partition.value
        return ((each.stream, url, each.after, each.upto) for each, url in found)

    def _kept(self) -> dict[str, Extent | None]:
        return self._opened().kept()

    def _opened(self) -> Servers:
        if self._servers is None:
            self._servers = Servers(self._options)
        return self._servers

    def __getstate__(self) -> dict[str, Any]:
        """Spark sends the reader to tasks too, which need no connections."""
        return self.__dict__ | {"_servers": None}


def _until(extent: Extent | None, target: int) -> Extent | None:
    return extent and Extent(min(extent.first, target), min(extent.last, target))


class Servers:
    """The servers of a cluster, with a connection to each that is kept while it works."""

    def __init__(self, options: Options) -> None:
        self._options = options
        _, self._credentials = parse_url(options.url)
        self._connections: dict[str, RespConnection] = {}
        self._parts: dict[str, Part] = {}
        self._logs: set[str] = set()  # keys of those that the membership has
        self._silent: set[str] = set()

    def is_gone(self, stream: str) -> bool:
        """Whether the life of a part has been forgotten, which does not come back: its log is there, the part is not.

        A log that is not there may come back: a store that lost its data has none until the journal is rebuilt.
        """
        return stream not in self._parts and log_of(stream) in self._logs

    def parts(self) -> dict[str, Part]:
        """The parts to read. While the store does not answer, those known before."""
        try:
            membership = journalled_membership(self._connection(self._options.url))
        except ClusterError:
            self._forget(self._options.url)
            if not self._parts:
                raise
            return self._parts
        if membership is not None:
            self._parts = parts_of(membership, self._options.logs)
            self._logs = {kept.key for kept in membership.logs}
        return self._parts

    def kept(self) -> dict[str, Extent | None]:
        """How far each part goes; None for one that is lost, with nobody knowing how far it went.

        A part whose server does not answer is left out: it is read when it answers again. So is one of a broker that
        was given up while we asked: what that one keeps afterwards, publishers send elsewhere as well.
        """
        found = self._answers([part for part in self.parts().values() if part.url])
        parts = self.parts()
        counted = {stream: extent for stream, extent in found.items() if stream in parts and parts[stream].url}
        lost = {
            part.stream: Extent(part.kept, part.kept) if part.kept is not None else None
            for part in parts.values()
            if part.state is PartState.LOST
        }
        return counted | lost

    def _answers(self, parts: Sequence[Part]) -> dict[str, Extent | None]:
        by_server: dict[str, list[Part]] = {}
        for part in parts:
            by_server.setdefault(part.url, []).append(part)
        found: dict[str, Extent | None] = {}
        for url, there in by_server.items():
            try:
                kept = extents(self._connection(url), there)
            except ClusterError as error:
                self._forget(url)
                if url not in self._silent:
                    log.warning("parts of logs are not read for now: %s", error)
                self._silent.add(url)
                continue
            self._silent.discard(url)
            found |= {part.stream: extent for part, extent in zip(there, kept, strict=True)}
        return found

    def _connection(self, url: str) -> RespConnection:
        if url not in self._connections:
            self._connections[url] = RespConnection(url, self._credentials)
        return self._connections[url]

    def _forget(self, url: str) -> None:
        if (connection := self._connections.pop(url, None)) is not None:
            connection.close()
