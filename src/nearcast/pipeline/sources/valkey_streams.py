"""Valkey Streams as a Spark source, for batches and for streaming: `spark.readStream.format("valkey_streams")`.

Options:
    url                 of the server, or of a cluster's store
    brokers             `false` (default), or `true`: read the streams of all brokers of the cluster; they are called
                        BROKER/STREAM
    streams             names separated by commas; `prefix*` means all with that prefix, including later ones
    startingOffsets     `earliest` (default), `latest`, or JSON `{"stream": "ms-seq"}`: read after this id
    maxRecordsPerBatch  of all streams together (default 100,000)
    failOnDataLoss      `true` (default): stop if records were trimmed before they were read; `false`: count them
                        (`lost` in the offsets, which Spark shows in the progress of the query) and continue

Records are read by range between two offsets, and nothing is written to the server. So a batch that runs again, for
example after a restart, has the same records. There is one partition per stream, read as Arrow batches. A stream that
appears later is read from its beginning.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from nearcast.errors import ClusterError, UsageError
from nearcast.pipeline.sources.offsets import (
    BEGINNING,
    Offset,
    StreamRange,
    View,
    beginning_at,
    from_json,
    ranges,
    settled,
    shares,
    to_json,
)

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql.types import StructType

    from nearcast.pipeline.sources.cluster_streams import ClusterStreams
    from nearcast.pipeline.sources.server import Record, StreamServer

    Server = StreamServer | ClusterStreams


# --- options


DEFAULT_MAX_RECORDS = 100_000
_ID = re.compile(r"\d{1,20}-\d{1,20}")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The checked options, as `parse_options` returns them."""

    url: str
    streams: tuple[str, ...]  # names, or `prefix*`
    starting: str | dict[str, str] = "earliest"  # or `latest`, or ids by stream
    max_records: int = DEFAULT_MAX_RECORDS
    fail_on_data_loss: bool = True
    brokers: bool = False

    def want(self, stream: str) -> bool:
        stream = stream.partition("/")[2] if self.brokers else stream
        prefixes = tuple(name[:-1] for name in self.streams if name.endswith("*"))
        return stream in self.streams or stream.startswith(prefixes)


def parse_options(given: Mapping[str, str]) -> Options:
    """The options, checked; raises UsageError, which names the option and what it takes."""
    for required in ("url", "streams"):
        if not given.get(required):
            raise UsageError(f"the option {required!r} of valkey_streams is missing")
    streams = tuple(name for name in (part.strip() for part in given["streams"].split(",")) if name)
    maximum = given.get("maxRecordsPerBatch") or str(DEFAULT_MAX_RECORDS)
    if not maximum.isdecimal() or int(maximum) < 1:
        raise UsageError(f"maxRecordsPerBatch is {maximum!r}: give a number of at least 1")
    return Options(
        url=given["url"],
        streams=streams,
        starting=_starting(given.get("startingOffsets") or "earliest"),
        max_records=int(maximum),
        fail_on_data_loss=_switch(given, "failOnDataLoss", "true"),
        brokers=_switch(given, "brokers", "false"),
    )


def _switch(given: Mapping[str, str], name: str, default: str) -> bool:
    value = (given.get(name) or default).lower()
    if value not in ("true", "false"):
        raise UsageError(f"{name} is {value!r}: give true or false")
    return value == "true"


def _starting(text: str) -> str | dict[str, str]:
    if text in ("earliest", "latest"):
        return text
    hint = 'give earliest, latest, or JSON like {"stream": "0-0"}'
    try:
        ids = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError as error:
        raise UsageError(f"startingOffsets is {text!r} ({error}): {hint}") from None
    if not all(_ID.fullmatch(one) for one in ids.values()):
        raise UsageError(f"startingOffsets is {text!r}, with an id that is not ms-seq: {hint}")
    return ids


# --- records


SCHEMA = "stream STRING, id STRING, at TIMESTAMP, fields MAP<STRING, BINARY>"
_LAST_MS = 253_402_300_799_999  # the end of the year 9999, where Spark's timestamps end

log = logging.getLogger(__name__)


def read_range(options: Options, wanted: StreamRange) -> Iterator[pyarrow.RecordBatch]:
    """The records of the range. If some were trimmed since it was planned, this is an error or a line in the log."""
    missing = wanted.records
    with _server(options) as server:
        for page in server.pages(wanted.stream, wanted.after, wanted.upto):
            missing -= len(page)
            yield _batch(wanted.stream, page)
    if missing > 0:
        problem = (
            f"data loss: {missing} of {wanted.records} records of stream {wanted.stream!r} after {wanted.after} "
            f"up to {wanted.upto} were trimmed or deleted before they were read"
        )
        if options.fail_on_data_loss:
            raise ClusterError(f"{problem}. Set failOnDataLoss=false to continue with what is left")
        log.warning(problem)


def _batch(stream: str, page: list[Record]) -> pyarrow.RecordBatch:
    import pyarrow

    ids = [record_id.decode() for record_id, _ in page]
    milliseconds = [int(record_id.partition("-")[0]) for record_id in ids]
    fields = [list(_fields(flat).items()) for _, flat in page]
    columns = {
        "stream": pyarrow.array([stream] * len(page), pyarrow.string()),
        "id": pyarrow.array(ids, pyarrow.string()),
        "at": pyarrow.array(
            [at * 1000 if at <= _LAST_MS else None for at in milliseconds], pyarrow.timestamp("us", "UTC")
        ),
        "fields": pyarrow.array(fields, pyarrow.map_(pyarrow.string(), pyarrow.binary())),
    }
    return pyarrow.RecordBatch.from_pydict(columns)


def _fields(flat: list[bytes]) -> dict[str, bytes]:
    """The fields by name. A repeated name has its last value; bytes of a name that are not UTF-8 are escaped."""
    names = (name.decode("utf-8", "backslashreplace") for name in flat[::2])
    return dict(zip(names, flat[1::2], strict=True))


# --- the source and its readers


SCAN_EVERY_S = 1.0  # SCAN walks over all keys of the server


class ValkeyStreams(DataSource):
    """The data source. Spark creates it, pickles it and asks it for readers."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._options = parse_options(options)

    @classmethod
    def name(cls) -> str:
        return "valkey_streams"

    def schema(self) -> str:
        return SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(self._options)

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(self._options)


@contextmanager
def _server(options: Options) -> Iterator[Server]:
    from nearcast.pipeline.sources.cluster_streams import ClusterStreams
    from nearcast.pipeline.sources.server import RespConnection, StreamServer

    if options.brokers:
        with ClusterStreams(options.url) as cluster:
            yield cluster
    else:
        with RespConnection(options.url) as connection:
            yield StreamServer(connection)


class BatchReader(DataSourceReader):
    """All records from the starting offsets to the end that the streams have when the batch is planned."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        with _server(self._options) as server:
            start = starting(server, self._options, server.names(self._options.streams))
            return [InputPartition(found) for found in ranges(start, ahead(server, self._options, start))]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        # If there are no partitions, Spark still calls this once, without a value.
        found = partition.value if partition is not None else None
        return iter(()) if found is None else read_range(self._options, found)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Gives offsets on the driver, in one process that lives as long as the query, and reads in any process."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._names: list[str] = []
        self._scanned_s = float("-inf")
        self._begun = False
        self._targets: dict[str, int] | None = None  # positions to stop at, when Spark wants only what is there now

    def initialOffset(self) -> dict[str, Any]:
        return {}  # the first end offset says where the streams began: see offsets.py

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_records)

    def prepareForTriggerAvailableNow(self) -> None:
        with _server(self._options) as server:
            views = server.views(server.names(self._options.streams))
        self._targets = {stream: view.added for stream, view in views.items() if view is not None}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if not isinstance(limit, ReadMaxRows | ReadAllAvailable):
            raise UsageError(f"valkey_streams does not know the limit {limit}: use maxRecordsPerBatch")
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        with _server(self._options) as server:
            known = from_json(start)
            wanted = self._wanted(server, known)
            # Streams no longer wanted keep their offsets, to continue from there if they are wanted again.
            return to_json(known | ahead(server, self._options, wanted, most, self._targets))

    def _wanted(self, server: Server, known: dict[str, Offset]) -> dict[str, Offset]:
        """The streams to read from, including new ones, each with the offset to continue from."""
        names = self._scanned(server) if self._targets is None else list(self._targets)
        if not known and not self._begun:
            self._begun = True
            return starting(server, self._options, names)
        return {stream: Offset() for stream in names} | {
            stream: offset for stream, offset in known.items() if self._options.want(stream)
        }

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [InputPartition(found) for found in ranges(from_json(start), from_json(end))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_range(self._options, partition.value)

    def _scanned(self, server: Server) -> list[str]:
        if time.monotonic() - self._scanned_s >= SCAN_EVERY_S:
            self._names = server.names(self._options.streams)
            self._scanned_s = time.monotonic()
        return self._names


# --- where to begin, and how far to read


def starting(server: Server, options: Options, streams: Sequence[str]) -> dict[str, Offset]:
    """The offsets that a new query begins with. Records trimmed before that do not count as lost."""
    found = {}
    for stream, view in server.views(streams).items():
        if view is None:
            found[stream] = Offset()
        elif options.starting == "latest":
            found[stream] = beginning_at(view.last_id, view.added)
        elif isinstance(options.starting, dict) and stream in options.starting:
            found[stream] = _at(server, stream, options.starting[stream], view)
        else:
            found[stream] = beginning_at(BEGINNING, view.trimmed)
    return found


def _at(server: Server, stream: str, record_id: str, view: View) -> Offset:
    """The offset of a given id. Its position is computed from the number of records after it."""
    _, behind = server.step(stream, record_id, view.length)
    return beginning_at(record_id, view.added - behind)


def ahead(
    server: Server,
    options: Options,
    start: Mapping[str, Offset],
    limit: int | None = None,
    targets: Mapping[str, int] | None = None,
) -> dict[str, Offset]:
    """The offsets to read up to next: at most `limit` records, and no stream beyond its target position."""
    views = server.views(sorted(start))
    offsets = {
        stream: settled(stream, offset, views[stream], fail_on_data_loss=options.fail_on_data_loss)
        for stream, offset in start.items()
    }
    backlogs = {
        stream: max(0, min(view.added, view.added if targets is None else targets.get(stream, 0)) - offset.position)
        for stream, offset in offsets.items()
        if (view := views[stream]) is not None
    }
    for stream, share in shares(backlogs, limit).items():
        offsets[stream] = _advanced(server, stream, offsets[stream], views[stream], share)
    return offsets


def _advanced(server: Server, stream: str, offset: Offset, view: View | None, records: int) -> Offset:
    if view is None or not records:
        return offset
    if offset.position + records == view.added:
        last, position = view.last_id, view.added
    else:
        last, count = server.step(stream, offset.id, records)
        position = offset.position + count
    return msgspec.structs.replace(offset, id=last, position=position)
