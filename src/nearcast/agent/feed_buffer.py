"""How a feed's events get into its stream: the buffer in the agent, and the scripts on the store's server.

`FeedBuffer` holds events between the subscription and the stream, in the form in which they are appended. The
collecting agent removes what was appended. The standby keeps what the other may not have appended yet.

The scripts are what collectors do on the store's server, each as one atomic step. Any Valkey, or Redis 5 or newer, runs
them.
"""

from __future__ import annotations

from collections import deque

from nearcast.core.model.message import Event, Gap, Message

# --- the buffer


BUFFER_EVENTS_MAX = 50_000
BUFFER_BYTES_MAX = 64 << 20

Entry = tuple[bytes | str, ...]  # six, as APPEND takes them


class FeedBuffer:
    """Oldest first. At its limits the oldest are dropped, and `dropped_ms` says how far that reaches."""

    def __init__(self, events_max: int = BUFFER_EVENTS_MAX, bytes_max: int = BUFFER_BYTES_MAX) -> None:
        self._entries: deque[tuple[float, Entry]] = deque()
        self._bytes = 0
        self._events_max = events_max
        self._bytes_max = bytes_max
        self.dropped_ms = 0.0  # when the newest dropped event came; 0: none was dropped

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def full(self) -> bool:
        return len(self._entries) >= self._events_max or self._bytes >= self._bytes_max

    def add(self, events: list[Event], now_ms: float) -> None:
        for event in events:
            entry = _entry(event)
            self._entries.append((now_ms, entry))
            self._bytes += len(entry[5])
        while len(self._entries) > self._events_max or self._bytes > self._bytes_max:
            self.dropped_ms = self._entries[0][0]
            self.remove(1)

    def interrupted(self, topic: str, text: str) -> None:
        """Put a report first that something may be missing."""
        self._entries.appendleft((0.0, _interruption(topic, text)))
        self._bytes += len(text)

    def first(self, count: int, size: int) -> list[Entry]:
        """The oldest events: at most `count`, and at most `size` bytes unless the first alone has more."""
        found: list[Entry] = []
        for _, entry in self._entries:
            size -= len(entry[5])
            if found and (size < 0 or len(found) >= count):
                break
            found.append(entry)
        return found

    def remove(self, count: int) -> None:
        for _ in range(count):
            _, entry = self._entries.popleft()
            self._bytes -= len(entry[5])

    def forget(self, before_ms: float) -> None:
        """Drop the events that came before this time."""
        while self._entries and self._entries[0][0] < before_ms:
            self.remove(1)


def _entry(event: Event) -> Entry:
    if isinstance(event, Message):
        sent = f"{event.published_at:.6f}"
        return "m", event.topic, str(event.publisher), str(event.sequence), sent, event.payload
    if isinstance(event, Gap):
        text = f"messages {event.first} to {event.last} are missing: {event.reason}"
        return "g", event.topic, str(event.publisher), str(event.first), str(event.last), text
    if event.until_s is None:
        return _interruption(event.topic, f"messages may be missing since {event.since_s:.3f}: {event.reason}")
    extent = f"from {event.since_s:.3f} to {event.until_s:.3f}"
    return _interruption(event.topic, f"messages may be missing {extent}: {event.reason}")


def _interruption(topic: str, text: str) -> Entry:
    return "i", topic, "", "", "", text


GONE, IDLE, STANDBY, COLLECT = 0, 1, 2, 3  # the role that CLAIM gives
NOT_OURS = -1  # what APPEND says to an agent that lost its lease

# KEYS: feeds, lease, standby, state. ARGV: feed, agent, lease in ms, time in ms up to which all is in the stream, or 0.
# Returns the role, the server's time, and up to when all was in the stream (0: never), both in ms.
# The standby has the first right to a free lease: it has what the other may not have written.
CLAIM = b"""
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return {0, now, 0} end
local whole = tonumber(redis.call('HGET', KEYS[4], 'until') or '0')
local holder, standby = redis.call('GET', KEYS[2]), redis.call('GET', KEYS[3])
if not holder and (not standby or standby == ARGV[2]) then
  redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3])
  redis.call('DEL', KEYS[3])
  return {3, now, whole}
end
if holder == ARGV[2] then
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
  if ARGV[4] ~= '0' then redis.call('HSET', KEYS[4], 'until', ARGV[4]) end
  return {3, now, whole}
end
if standby and standby ~= ARGV[2] then return {1, now, whole} end
redis.call('SET', KEYS[3], ARGV[2], 'PX', ARGV[3])
return {2, now, whole}
"""

# KEYS: feeds, lease, state, stream, lines, older lines. ARGV: feed, agent, lease in ms, records and bytes the stream
# may hold, ms after which a quiet line is forgotten (at the earliest), then six for each event:
#   m, topic, publisher, sequence, published at, payload    a message
#   g, topic, publisher, first, last, text                  messages that will not come
#   i, topic, '', '', '', text                              an interruption: what is missing is not known
# Returns how many records were added, or -1. A message that is already in the stream is not added again; one whose
# predecessors are missing gets a record before it that says so.
APPEND = b"""
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 or redis.call('GET', KEYS[2]) ~= ARGV[2] then return -1 end
redis.call('PEXPIRE', KEYS[2], ARGV[3])
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if now - tonumber(redis.call('HGET', KEYS[3], 'rotated') or '0') > tonumber(ARGV[6]) then
  redis.call('DEL', KEYS[6])
  if redis.call('EXISTS', KEYS[5]) == 1 then redis.call('RENAME', KEYS[5], KEYS[6]) end
  redis.call('HSET', KEYS[3], 'rotated', string.format('%.0f', now))
end
local added = 0
local function gap(topic, publisher, text)
  redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[4], '*', 'kind', 'gap', 'topic', topic, 'publisher', publisher,
             'text', text)
  added = added + 1
end
for i = 7, #ARGV, 6 do
  local kind, topic, publisher = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if kind == 'i' then
    gap(topic, '', ARGV[i + 5])
  else
    local line = publisher .. '/' .. topic
    local last = tonumber(redis.call('HGET', KEYS[5], line) or redis.call('HGET', KEYS[6], line) or nil)
    local first, upto = tonumber(ARGV[i + 3]), tonumber(kind == 'm' and ARGV[i + 3] or ARGV[i + 4])
    if not last or upto > last then
      if last and first > last + 1 then
        gap(topic, publisher, string.format('messages %.0f to %.0f never reached the collector', last + 1, first - 1))
      end
      if kind == 'm' then
        redis.call('XADD', KEYS[4], 'MAXLEN', '~', ARGV[4], '*', 'topic', topic, 'publisher', publisher,
                   'sequence', ARGV[i + 3], 'published_at', ARGV[i + 4], 'payload', ARGV[i + 5])
        added = added + 1
      else
        gap(topic, publisher, ARGV[i + 5])
      end
      redis.call('HSET', KEYS[5], line, string.format('%.0f', upto))
    end
  end
end
for _ = 1, 5 do -- the size is estimated from a few records, so once may not be enough
  local size = redis.call('MEMORY', 'USAGE', KEYS[4])
  if not size or size <= tonumber(ARGV[5]) then break end
  redis.call('XTRIM', KEYS[4], 'MAXLEN', math.floor(redis.call('XLEN', KEYS[4]) * 0.9 * ARGV[5] / size))
end
return added
"""

# KEYS: lease, standby. ARGV: agent. Gives up what it holds, so that the next agent need not wait for the lease to end.
RELEASE = b"""
for _, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[1] then redis.call('DEL', key) end
end
return 1
"""
