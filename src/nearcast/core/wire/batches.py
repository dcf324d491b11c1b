"""Batches: consecutive messages of one publisher on one topic, kept and delivered in one step.

A topic that a log covers is published in batches. The batch that subscribers get is, byte for byte, what stands in the
log. It begins like a frame, with the number of the first message in place of the sequence, and the count in place of
the time. For each message follow, big-endian:

    kind u8, size u32, time u64 (nanoseconds since the Unix epoch), payload
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct

from nearcast.core.wire.frames import BATCH, HEADER, HEADER_BYTES, NUMBERED, word_of

ITEM = Struct(">BIQ")
ITEM_BYTES = ITEM.size

_KINDS = {word & 0xFF: word for word in NUMBERED}

Item = tuple[int, int, bytes]  # the word of a frame, time, payload


def encode_batch(
    epoch: int, publisher: int, first: int, messages: Iterable[tuple[bytes | None, int]], *, begins: bool = False
) -> bytes:
    """A batch of (payload, time); None stands for a number that was given up. `begins`: nothing comes before it."""
    parts, count, pack = [b""], 0, ITEM.pack
    for payload, time_ns in messages:
        word = word_of(payload, first=begins and not count)
        body = payload or b""
        parts += (pack(word & 0xFF, len(body), time_ns), body)
        count += 1
    parts[0] = HEADER.pack(BATCH, epoch, publisher, first, count)
    return b"".join(parts)


def decode_batch(batch: bytes) -> list[Item] | None:
    """The messages of a batch, in order; None if it is not one: anybody who may publish can send anything."""
    _, _, _, _, count = HEADER.unpack_from(batch)
    items: list[Item] = []
    at, end, unpack = HEADER_BYTES, len(batch), ITEM.unpack_from
    if count * ITEM_BYTES > end - at:
        return None
    for _ in range(count):
        if end - at < ITEM_BYTES:
            return None
        kind, size, time_ns = unpack(batch, at)
        at += ITEM_BYTES
        word = _KINDS.get(kind)
        if word is None or size > end - at:
            return None
        items.append((word, time_ns, batch[at : at + size]))
        at += size
    return items if at == end and items else None
