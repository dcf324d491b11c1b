"""Records of a stream as Arrow batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nearcast.errors import ClusterError
from nearcast.pipeline.sources.offsets import StreamRange
from nearcast.pipeline.sources.options import Options

if TYPE_CHECKING:
    import pyarrow

    from nearcast.pipeline.sources.stream_server import Record

SCHEMA = "stream STRING, id STRING, at TIMESTAMP, fields MAP<STRING, BINARY>"
_LAST_MS = 253_402_300_799_999  # the end of the year 9999, where Spark's timestamps end

log = logging.getLogger(__name__)


def read_range(options: Options, wanted: StreamRange) -> Iterator[pyarrow.RecordBatch]:
    """The records of the range. If some were trimmed since it was planned: an error, or a line in the log."""
    from nearcast.pipeline.sources.resp import RespConnection
    from nearcast.pipeline.sources.stream_server import StreamServer

    missing = wanted.records
    with RespConnection(options.url) as connection:
        for page in StreamServer(connection).pages(wanted.stream, wanted.after, wanted.upto):
            missing -= len(page)
            yield _batch(wanted.stream, page)
    if missing > 0:
        said = (
            f"data loss: {missing} of {wanted.records} records of stream {wanted.stream!r} after {wanted.after} "
            f"up to {wanted.upto} were trimmed or deleted before they were read"
        )
        if options.fail_on_data_loss:
            raise ClusterError(f"{said}. Set failOnDataLoss=false to go on with what is left")
        log.warning(said)


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
    """By name; a name that comes twice has its last value, and bytes that are not UTF-8 are spelled out in a name."""
    names = (name.decode("utf-8", "backslashreplace") for name in flat[::2])
    return dict(zip(names, flat[1::2], strict=True))
