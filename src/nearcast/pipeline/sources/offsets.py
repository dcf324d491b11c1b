"""Offsets of the streams: how far we have read, how far to read next, and what was lost in between.

A stream's offset is the id of the last record read, and its *position*: how many records had ever been added when
that record was the last. The server counts them (`entries-added`), so the difference of two positions says how many
records lie between them, even if some of them were trimmed. This is how losses are found and counted exactly.

Spark keeps offsets in its checkpoint, and everything about a batch follows from its two offsets. Spark does not keep
the first offset of a query: it asks for it again when it has to run the first batch again, and by then the stream may
be another one. So the first offset is always empty, and each offset says where reading of its stream began.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from nearcast.errors import ClusterError

BEGINNING = "0-0"  # lower than all ids


class Offset(msgspec.Struct, frozen=True):
    """How far one stream was read."""

    id: str = BEGINNING
    lost: int = 0  # records trimmed before they were read, since the query began
    position: int = 0
    began: str = BEGINNING  # the id after which the query began to read the stream
    skipped: int = 0  # the position of that id
    restarts: int = 0  # how often the stream was deleted and created again, which restarts its ids


class View(msgspec.Struct, frozen=True):
    """What the server reports about a stream."""

    length: int
    added: int
    first_id: str
    last_id: str  # of the last record ever added

    @property
    def trimmed(self) -> int:
        return self.added - self.length


def ordered(record_id: str) -> tuple[int, int]:
    """An id `ms-seq` as a value that sorts by age."""
    milliseconds, _, sequence = record_id.partition("-")
    return int(milliseconds), int(sequence)


def beginning_at(record_id: str, position: int) -> Offset:
    """The offset of a stream that is read from this id on."""
    return Offset(id=record_id, position=position, began=record_id, skipped=position)


def to_json(offsets: Mapping[str, Offset]) -> dict[str, Any]:
    """The form in which Spark keeps offsets: plain values, sorted, so that equal offsets have equal texts."""
    return {stream: msgspec.to_builtins(offset, order="sorted") for stream, offset in sorted(offsets.items())}


def from_json(kept: Mapping[str, Any]) -> dict[str, Offset]:
    return {stream: msgspec.convert(offset, Offset) for stream, offset in kept.items()}


def noted(checkpoint: Path, batch: int) -> dict[str, Offset]:
    """The offsets at the end of a batch, which Spark wrote to its checkpoint before it ran the batch."""
    lines = (checkpoint / "offsets" / str(batch)).read_text(encoding="utf-8").splitlines()
    return from_json(json.loads(lines[-1]))


def settled(stream: str, offset: Offset, view: View | None, *, fail_on_data_loss: bool) -> Offset:
    """The offset, with records that can no longer be read counted as lost; `fail_on_data_loss` raises instead."""
    if view is None:
        if offset.position and fail_on_data_loss:
            raise ClusterError(
                f"data loss: stream {stream!r} is gone; whether it had records after {offset.id} is unknown. {_REMEDY}"
            )
        return offset
    if view.added < offset.position or ordered(view.last_id) < ordered(offset.id):
        if fail_on_data_loss:
            raise ClusterError(
                f"data loss: stream {stream!r} was deleted and created again: it was read up to {offset.id}, "
                f"and now ends at {view.last_id} with {view.added} records ever added. {_REMEDY}"
            )
        offset = msgspec.structs.replace(offset, id=BEGINNING, position=0, restarts=offset.restarts + 1)
    missing = view.trimmed - offset.position
    if missing <= 0:
        return offset
    if fail_on_data_loss:
        raise ClusterError(
            f"data loss: {missing} records of stream {stream!r} after {offset.id} and before "
            f"{view.first_id if view.length else 'its end'} were trimmed before they were read. {_REMEDY}"
        )
    return msgspec.structs.replace(offset, position=view.trimmed, lost=offset.lost + missing)


_REMEDY = "Set failOnDataLoss=false to continue with what is left, and trim later or read faster"


def shares(backlogs: Mapping[str, int], limit: int | None) -> dict[str, int]:
    """How many records of each stream to read, at most `limit` in all: short streams whole, the rest in equal parts."""
    if limit is None:
        return dict(backlogs)
    granted: dict[str, int] = {}
    shortest_first = sorted((backlog, stream) for stream, backlog in backlogs.items())
    for index, (backlog, stream) in enumerate(shortest_first):
        granted[stream] = min(backlog, limit // (len(shortest_first) - index))
        limit -= granted[stream]
    return granted


class StreamRange(msgspec.Struct, frozen=True):
    """Records of one stream to read: those after one id, up to and including another."""

    stream: str
    after: str
    upto: str
    records: int


def ranges(start: Mapping[str, Offset], end: Mapping[str, Offset]) -> list[StreamRange]:
    """What lies between two offsets, by stream. It depends only on them, so a batch that is run again is the same."""
    found = []
    for stream, upto in sorted(end.items()):
        before = start.get(stream) or Offset(id=upto.began, position=upto.skipped)
        if upto.restarts != before.restarts:
            before = Offset(lost=before.lost)
        records = upto.position - before.position - (upto.lost - before.lost)
        if records > 0:
            found.append(StreamRange(stream, before.id, upto.id, records))
    return found
