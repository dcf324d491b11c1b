"""The parts of logs: which there are, where each is read, and the messages between two of its positions.

What one life of a broker keeps of one log is a part, a stream on that broker's own server. The membership in the
controllers' journal names the logs and the lives, and what has become of lives that have ended.

A position in a part is a number of messages, counted from its first one. Positions are dense, so how far a part goes,
what lies between two positions and what retention has removed are differences of numbers. Where a position is in the
stream is found by bisection on the server, over the times in the ids of its entries.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from nearcast.core.model.journal import MEMBERSHIP_KEY
from nearcast.core.model.logs import PartState, stream_of, totals_of
from nearcast.core.model.membership import Membership, decode_membership
from nearcast.core.model.names import ENTRIES_KEY, LOGS
from nearcast.core.wire.frames import HEADER_BYTES
from nearcast.core.wire.scripts import PAGE
from nearcast.pipeline.sources.server import RespConnection

# --- which there are


class Part(msgspec.Struct, frozen=True):
    """What one life of a broker keeps, or has kept, of one log."""

    stream: str
    life: str
    url: str  # of the server that has it; empty if none has
    state: PartState | None = None  # of a life that has ended
    kept: int | None = None  # messages it had kept in the end, if its life has ended and that is known


def journalled_membership(store: RespConnection) -> Membership | None:
    """The membership as the controllers have decided it; None before there is one."""
    document = store.ask("HGET", ENTRIES_KEY, MEMBERSHIP_KEY)
    return decode_membership(document) if document is not None else None


def parts_of(membership: Membership, logs: Collection[str]) -> dict[str, Part]:
    """The parts of the logs with these keys, by stream."""
    found = []
    for log in (log for log in membership.logs if log.key in logs):
        for name, info in membership.brokers.items():
            life = membership.life(name)
            found.append(Part(stream_of(log, life).decode(), life, info.url))
        for former in membership.former:
            if former.ended > log.created:
                kept = former.counts.get(log.key, 0) if former.counts is not None else None
                stream = stream_of(log, former.life).decode()
                found.append(Part(stream, former.life, former.url, former.state, kept))
    return {part.stream: part for part in found}


def log_of(stream: str) -> str:
    """The key of the log that a part is of."""
    return stream.removeprefix(LOGS.decode()).partition(":")[0]


def life_in(stream: str) -> str:
    """The life that a part is of."""
    return stream.removeprefix(LOGS.decode()).partition(":")[2]


# --- how far they go, and their entries


PAGE_MESSAGES = 2000  # read at once: enough to make a round trip cheap, few enough to keep parsing and reading in step
PAGE_ENTRIES_MAX = 1000
PAGE_BYTES = 4 << 20
_COUNT = 5  # the place of the running count among the fields of an entry
_BATCHES = 6  # and of the first topic
_DIGITS_MAX = 16

# KEYS: pairs of totals and stream. Returns for each stream the positions where what is kept begins and ends. An entry's
# count is its position at the end; the batches in it have the number of their messages in their headers. Publishers can
# write anything there, and must not keep the parts of others from being read.
_EXTENTS = """
local function number(text)
  local value = tonumber(text or '')
  return value and value == value and math.max(0, math.min(value, 2 ^ 53))
end
local found = {}
for k = 1, #KEYS, 2 do
  local last = number(redis.call('HGET', KEYS[k], KEYS[k + 1])) or 0
  local begins, first = last, redis.call('XRANGE', KEYS[k + 1], '-', '+', 'COUNT', 1)[1]
  if first then
    begins = number(first[2][6]) or last
    for f = 8, #first[2], 2 do
      if #first[2][f] >= 32 then begins = begins - struct.unpack('>I8', first[2][f], 25) end
    end
  end
  found[#found + 1], found[#found + 2] = math.max(0, math.min(begins, last)), last
end
return found
"""

# KEYS: stream. ARGV: position. Returns the time of an entry that ends at or before the position, so late that no entry
# with a later time does: the message after the position is in the first of the next entries that ends after it.
# Publishers can write any time; between those beyond 2^53 a number may have no middle.
_SEEK = """
local function first_from(ms) return redis.call('XRANGE', KEYS[1], string.format('%.0f', ms), '+', 'COUNT', 1)[1] end
local function time_of(entry) return tonumber(string.match(entry[1], '^%d+')) end
local function ends_at(entry) return tonumber(entry[2][6] or '') or math.huge end
local first, last = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1], nil
if not first then return '0' end
last = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local low, high, position = time_of(first), time_of(last) + 1, tonumber(ARGV[1])
while high - low > 1 do
  local middle = math.floor((low + high) / 2)
  if middle <= low or middle >= high then break end
  local entry = first_from(middle)
  if entry and ends_at(entry) <= position then low = math.max(middle, time_of(entry)) else high = middle end
end
return string.format('%.0f', math.min(low, 18446744073709549568))
"""


class Extent(NamedTuple):
    """The messages of a part that are kept: those after `first`, up to and including `last`."""

    first: int
    last: int


class Entry(NamedTuple):
    """What one call of a publisher has appended: batches by topic, and the position of the last message."""

    name: bytes  # its id in the stream
    at_us: int  # when the server appended it, by its clock, since 1970; later entries of a stream are greater
    position: int
    batches: list[bytes]  # topics and batches in turn


def extents(server: RespConnection, parts: Sequence[Part]) -> list[Extent]:
    """How far each part goes; all of them must be on this server."""
    keys = [key for part in parts for key in (totals_of(part.life), part.stream)]
    found = server.ask("EVAL_RO", _EXTENTS, len(keys), *keys)
    return [Extent(*pair) for pair in zip(found[::2], found[1::2], strict=True)]


def entries(server: RespConnection, stream: str, after: int, upto: int) -> Iterator[list[Entry]]:
    """The entries with messages after a position, up to and including another, in pages.

    The server prepares the next page while the caller works on one.
    """
    begin = server.ask("EVAL_RO", _SEEK, 1, stream, after)
    server.send("XRANGE", stream, begin, "+", "COUNT", 1)
    size = 1
    while True:
        found = server.receive()
        page = [entry for name, fields in found if (entry := _entry(name, fields)) is not None]
        position = page[-1].position if page else after
        ends = (len(found) < size and _bytes(found) < PAGE_BYTES) or position >= upto
        if not ends:
            size = _next_size(len(found), position - after, upto - position)
            server.send("EVAL_RO", PAGE, 0, stream, found[-1][0], size, PAGE_BYTES)
        yield _within(page, after, upto)
        if ends:
            return
        after = max(after, position)


def _bytes(found: list[tuple[bytes, list[bytes]]]) -> int:
    return sum(len(field) for _, fields in found for field in fields)


def _entry(name: bytes, fields: list[bytes]) -> Entry | None:
    """None for an entry that is not of a publisher's script: whoever may publish to a log can append anything."""
    if len(fields) <= _COUNT or not fields[_COUNT].isdigit() or len(fields[_COUNT]) > _DIGITS_MAX:
        return None
    batches = fields[_BATCHES:]
    readable = len(batches) % 2 == 0 and all(len(batch) >= HEADER_BYTES for batch in batches[1::2])
    return Entry(name, _time_us(name), int(fields[_COUNT]), batches if readable else [])


def _within(page: list[Entry], after: int, upto: int) -> list[Entry]:
    """Those with messages of the range: the first one that ends at its end, or beyond it, is the last."""
    later = [entry for entry in page if entry.position > after]
    last = next((place for place, entry in enumerate(later) if entry.position >= upto), len(later))
    return later[: last + 1]


def _next_size(entries_before: int, messages_before: int, messages_left: int) -> int:
    """How many entries to ask for, so that they have about `PAGE_MESSAGES`, if they are like those before them."""
    wanted = min(PAGE_MESSAGES, messages_left)
    return max(1, min(PAGE_ENTRIES_MAX, wanted * entries_before // max(1, messages_before)))


_SAME_MS_MAX = 999


def _time_us(name: bytes) -> int:
    """The time in an entry's id. The first thousand entries of a millisecond differ by a microsecond each."""
    milliseconds, _, number = name.partition(b"-")
    return int(milliseconds) * 1000 + min(int(number), _SAME_MS_MAX)
