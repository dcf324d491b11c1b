"""Parquet files that tasks write: aside first, then synced, then renamed. A file with its final name is whole."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

_SUFFIX = ".parquet"


class WrittenFile(msgspec.Struct, frozen=True):
    """A file that is whole, and on disk."""

    path: str
    rows: int
    bytes: int


class FileWriter:
    """Writes one file, which counts once it is closed. Without rows there is none.

    The name says what is in the file, so a task that runs twice writes the same file twice, not two files.
    """

    def __init__(self, folder: Path, name: str, schema: pa.Schema) -> None:
        self._path = folder / f"{name}{_SUFFIX}"
        self._aside = folder / f".{name}-{secrets.token_hex(4)}"
        self._schema = schema
        self._writer: pq.ParquetWriter | None = None
        self._rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        if self._writer is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._aside, self._schema)
        self._writer.write_batch(rows)
        self._rows += rows.num_rows

    def close(self) -> WrittenFile | None:
        """The file; None if there were no rows."""
        if self._writer is None:
            return None
        self._writer.close()
        size = _synced(self._aside)
        self._aside.rename(self._path)
        _synced(self._path.parent)
        return WrittenFile(str(self._path), self._rows, size)


def _synced(path: Path) -> int:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        return os.fstat(handle).st_size
    finally:
        os.close(handle)
