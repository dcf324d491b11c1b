"""Dead letters as a person reads them, without Spark: the newest first, from the folders of the last commits."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

SHOWN_BYTES = 500  # of a payload


def newest_dead_letters(folders: Iterable[Path], last: int) -> list[dict[str, Any]]:
    """`folders`: the newest first. One that was removed meanwhile is passed over."""
    import pyarrow.parquet as pq

    found: list[dict[str, Any]] = []
    for folder in folders:
        for file in sorted(folder.glob("*.parquet")):
            try:
                rows = pq.read_table(file).to_pylist()
            except FileNotFoundError:
                continue
            found += [_shown(row) for row in reversed(rows)]
        if len(found) >= last:
            break
    return found[:last]


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    payload = row["payload"]
    times = {name: row[name].isoformat() if row[name] is not None else None for name in ("published_at", "ingested_at")}
    text = None if payload is None else payload[:SHOWN_BYTES].decode("utf-8", "backslashreplace")
    return {**row, "payload": text, **times}
