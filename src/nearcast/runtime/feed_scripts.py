"""What collectors do on the store's server, each one atomic step. Any Valkey, or Redis 5 or newer, runs them."""

from __future__ import annotations

GONE, IDLE, STANDBY, COLLECT = 0, 1, 2, 3  # the role that CLAIM gives
NOT_OURS = -1  # what APPEND says to an agent that lost its lease

# KEYS: feeds, lease, standby, state. ARGV: feed, agent, lease in ms, time in ms up to which all is in the stream, or 0.
# Returns the role, the server's time, and up to when all was in the stream (0: never), both in ms.
# Whoever stands by has the first right to a free lease: it has what the other may not have written.
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
# Returns how many records were added, or -1. A message that is in the stream is not added again; one whose
# predecessors are not gets a record before it that says so.
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

# KEYS: lease, standby. ARGV: agent. Gives up what it holds, so that the next need not wait for the end of the lease.
RELEASE = b"""
for _, key in ipairs(KEYS) do
  if redis.call('GET', key) == ARGV[1] then redis.call('DEL', key) end
end
return 1
"""
