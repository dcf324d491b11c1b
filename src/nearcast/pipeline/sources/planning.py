"""Where to begin, and how far to read next: offsets made from what the server says of its streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from nearcast.pipeline.sources.offsets import BEGINNING, Offset, View, beginning_at, settled, shares
from nearcast.pipeline.sources.options import Options
from nearcast.pipeline.sources.stream_server import StreamServer


def starting(server: StreamServer, options: Options, streams: Sequence[str]) -> dict[str, Offset]:
    """The offsets a new query begins with. What was trimmed before it began is not its loss."""
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


def _at(server: StreamServer, stream: str, record_id: str, view: View) -> Offset:
    """The offset of an id somebody gave: its position is told by how many records lie behind it."""
    _, behind = server.step(stream, record_id, view.length)
    return beginning_at(record_id, view.added - behind)


def ahead(
    server: StreamServer,
    options: Options,
    start: Mapping[str, Offset],
    limit: int | None = None,
    targets: Mapping[str, int] | None = None,
) -> dict[str, Offset]:
    """The offsets up to which to read next: at most `limit` records, and no stream beyond its target position."""
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


def _advanced(server: StreamServer, stream: str, offset: Offset, view: View | None, records: int) -> Offset:
    if view is None or not records:
        return offset
    if offset.position + records == view.added:
        last, position = view.last_id, view.added
    else:
        last, count = server.step(stream, offset.id, records)
        position = offset.position + count
    return msgspec.structs.replace(offset, id=last, position=position)
