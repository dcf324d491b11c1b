"""Valkey Streams as a Spark source, for batches and for streaming: `spark.readStream.format("valkey_streams")`.

Options:
    url                 of the server
    streams             names, with commas between; `prefix*` means all that begin so, also those that appear later
    startingOffsets     `earliest` (default), `latest`, or JSON `{"stream": "ms-seq"}`: read on after this id
    maxRecordsPerBatch  over all streams (default 100,000)
    failOnDataLoss      `true` (default): stop when records were trimmed before they were read; `false`: count them
                        (`lost` in the offsets, which Spark shows in the progress of the query) and go on

Records are read by range between two offsets and nothing is written to the server, so a batch that runs again, after
a restart say, has the same records. One partition per stream. A stream that appears later is read from its beginning.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from nearcast.errors import UsageError
from nearcast.pipeline.sources.offsets import Offset, from_json, ranges, to_json
from nearcast.pipeline.sources.options import Options, parse_options
from nearcast.pipeline.sources.records import SCHEMA, read_range

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from nearcast.pipeline.sources.stream_server import StreamServer

SCAN_EVERY_S = 1.0  # SCAN walks over all keys of the server


class ValkeyStreams(DataSource):
    """The data source. Spark makes it, pickles it and asks it for readers."""

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
def _server(options: Options) -> Iterator[StreamServer]:
    from nearcast.pipeline.sources.resp import RespConnection
    from nearcast.pipeline.sources.stream_server import StreamServer

    with RespConnection(options.url) as connection:
        yield StreamServer(connection)


class BatchReader(DataSourceReader):
    """All records from the starting offsets to the end of the streams, as it is when the batch is planned."""

    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        from nearcast.pipeline.sources.planning import ahead, starting

        with _server(self._options) as server:
            start = starting(server, self._options, server.names(self._options.streams))
            return [InputPartition(found) for found in ranges(start, ahead(server, self._options, start))]

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        # When there is no partition Spark has one read all the same, without a value.
        found = partition.value if partition is not None else None
        return iter(()) if found is None else read_range(self._options, found)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Asked for offsets on the driver, in one process that lives as long as the query; it reads in any process."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._names: list[str] = []
        self._scanned_s = float("-inf")
        self._begun = False
        self._targets: dict[str, int] | None = None  # positions to stop at, when Spark wants only what is there now

    def initialOffset(self) -> dict[str, Any]:
        return {}  # the first end offset tells where the streams began: see offsets.py

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_records)

    def prepareForTriggerAvailableNow(self) -> None:
        with _server(self._options) as server:
            views = server.views(server.names(self._options.streams))
        self._targets = {stream: view.added for stream, view in views.items() if view is not None}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        from nearcast.pipeline.sources.planning import ahead

        if not isinstance(limit, ReadMaxRows | ReadAllAvailable):
            raise UsageError(f"valkey_streams does not know the limit {limit}: use maxRecordsPerBatch")
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        with _server(self._options) as server:
            known = from_json(start)
            wanted = self._wanted(server, known)
            # Streams no longer wanted keep their offsets, so that they go on from there if they are wanted again.
            return to_json(known | ahead(server, self._options, wanted, most, self._targets))

    def _wanted(self, server: StreamServer, known: dict[str, Offset]) -> dict[str, Offset]:
        """The streams to read on, with those that appeared."""
        from nearcast.pipeline.sources.planning import starting

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

    def _scanned(self, server: StreamServer) -> list[str]:
        if time.monotonic() - self._scanned_s >= SCAN_EVERY_S:
            self._names = server.names(self._options.streams)
            self._scanned_s = time.monotonic()
        return self._names
