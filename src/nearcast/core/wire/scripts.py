"""The scripts that run on a server, each one atomic step of the protocol.

They use nothing but EVAL, so any Valkey or Redis server runs them. `sim/valkey/commands.py` runs the same steps in
Python; a conformance test checks that both give the same answers.
"""

from __future__ import annotations

# Any client may write a first use, and so may write anything: a version that the membership here has not had does not
# count.
_COUNTS = b"""
local version = redis.call('HGET', 'nc:m', 'version')
local members = tonumber(version or '-1')
local function counts(first)
  return first and #first <= 10 and string.find(first, '^%d+$') and tonumber(first) <= members
end
"""

# KEYS: records, first uses, totals, then the streams of the logs that cover the topics. ARGV: term, for each stream a
# mark or nothing, then (topic, version, record) repeated. Returns for each topic the version now on the server, or -1
# if our term is older than the record's; then for each stream the id of its last entry, empty if there has been none. A
# first use does not get in the way: the leader asks whether there is one before it decides anything for a topic.
#
# A mark comes with records that open a new epoch here. It is appended before anything of that epoch can be, and says
# what readers must have read elsewhere before they continue.
INSTALL = b"""
local found, opened = {}, false
local term, streams = tonumber(ARGV[1]), #KEYS - 3
for i = 2 + streams, #ARGV, 3 do
  local topic, version = ARGV[i], tonumber(ARGV[i + 1])
  local stored, stored_version, stored_term = redis.call('HGET', KEYS[1], topic), -1, -1
  if stored then
    local record = cjson.decode(stored)
    stored_version, stored_term = record['version'], record['term']
  end
  if term < stored_term then
    stored_version = -1
  elseif version >= stored_version then
    redis.call('HSET', KEYS[1], topic, ARGV[i + 2])
    redis.call('HDEL', KEYS[2], topic)
    redis.call('PUBLISH', 'nc:c:' .. topic, 'R' .. ARGV[i + 2])
    opened = opened or version > stored_version
    stored_version = version
  end
  found[#found + 1] = stored_version
end
for k = 1, streams do
  local key, mark = KEYS[3 + k], ARGV[1 + k]
  if opened and mark ~= '' then
    local count = redis.call('HGET', KEYS[3], key) or '0'
    local logs = redis.call('HGET', 'nc:m', 'logs') or '0'
    redis.call('XADD', key, '*', 'begin', mark, 'logs', logs, 'count', count)
    redis.call('PUBLISH', key, '')
  end
  local last = redis.call('XREVRANGE', key, '+', '-', 'COUNT', 1)
  found[#found + 1] = last[1] and last[1][1] or ''
end
return found
"""

# KEYS: membership. ARGV: version, document, version of the logs in it. Returns the version now on the server. Only the
# version is published: anyone may publish it, so clients that hear it read the key.
INSTALL_MEMBERS = b"""
local stored = tonumber(redis.call('HGET', KEYS[1], 'version') or '-1')
if tonumber(ARGV[1]) >= stored then
  redis.call('HSET', KEYS[1], 'version', ARGV[1], 'document', ARGV[2], 'logs', ARGV[3])
  redis.call('PUBLISH', KEYS[1], ARGV[1])
  stored = tonumber(ARGV[1])
end
return {stored}
"""

# KEYS: claim. ARGV: the asker, the beat it has seen unchanged for too long (-1: none). Returns {holder, beat}: the
# asker gets the claim, unless another agent is there and not known to be stuck.
CLAIM = b"""
local held = redis.call('HMGET', KEYS[1], 'holder', 'beat')
local holder, beat = held[1], held[2]
if holder and holder ~= ARGV[1] and beat ~= ARGV[2] then
  if redis.call('PUBSUB', 'NUMSUB', KEYS[1] .. ':' .. holder)[2] > 0 then
    return {holder, beat}
  end
end
local next_beat = string.format('%d', (beat or 0) + 1)
redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'beat', next_beat)
return {ARGV[1], next_beat}
"""

# KEYS: records, first uses. ARGV: (topic, version, record) repeated. Returns the record of each, empty if it has none.
# From now on the controller knows them: their records are kept with those of all topics that do not end.
KEEP = b"""
local found = {}
for i = 1, #ARGV, 3 do
  local stored = redis.call('HGET', KEYS[1], ARGV[i])
  if not stored and redis.call('HGET', KEYS[2], ARGV[i]) == ARGV[i + 1] then
    stored = ARGV[i + 2]
    redis.call('HSET', KEYS[1], ARGV[i], stored)
    redis.call('HDEL', KEYS[2], ARGV[i])
  end
  found[#found + 1] = stored or ''
end
return found
"""

# KEYS: first uses. ARGV: the agent's membership version, then topics. Deletes the first uses that no publisher and no
# subscriber holds, and those that do not count. Returns how many.
END_UNUSED = (
    _COUNTS
    + b"""
if version ~= ARGV[1] then
  return {0}
end
local ended = 0
for i = 2, #ARGV do
  local held = redis.call('PUBSUB', 'NUMSUB', ARGV[i], 'nc:c:' .. ARGV[i])
  if held[2] == 0 and held[4] == 0 or not counts(redis.call('HGET', KEYS[1], ARGV[i])) then
    ended = ended + redis.call('HDEL', KEYS[1], ARGV[i])
  end
end
return {ended}
"""
)

# KEYS: first uses. ARGV: the client's membership version, then topics. Returns {'found', ...} or {'stale', membership}:
# a directory answers only clients that share its view of the ring. Found is for each topic its record; or the version
# of its first use, which this may be; or nothing if that does not count. Records and membership are not among the keys:
# EVAL requires the right to write to all its keys, which no client has.
FIRST_USE = (
    _COUNTS
    + b"""
if version ~= ARGV[1] then
  return {'stale', redis.call('HGET', 'nc:m', 'document') or ''}
end
local found = {'found'}
local records = redis.call('HMGET', 'nc:r', unpack(ARGV, 2))
for i = 2, #ARGV do
  local stored = records[i - 1]
  if not stored then
    stored = ARGV[1]
    if redis.call('HSETNX', KEYS[1], ARGV[i], stored) == 0 then
      stored = redis.call('HGET', KEYS[1], ARGV[i])
    end
    stored = counts(stored) and stored
  end
  found[i] = stored or ''
end
return found
"""
)

# ARGV: topics. Returns for each its record, or the version of its first use, or nothing. No keys, for the same reason.
# In one step, because a record may replace a first use at any moment.
READ = (
    _COUNTS
    + b"""
local found = redis.call('HMGET', 'nc:r', unpack(ARGV))
local first = redis.call('HMGET', 'nc:first', unpack(ARGV))
for i = 1, #ARGV do
  found[i] = found[i] or counts(first[i]) and first[i] or ''
end
return found
"""
)

# Publishes batches and keeps them, in one step. KEYS: last numbers, older last numbers, totals, then the streams to
# append to. ARGV: version of the logs, publisher, then for each topic: topic, epoch, the number before which all are
# settled, the first and the last number of the batch, the batch. Returns the version of the logs here if that is
# another one. Otherwise for each topic the number of receivers; or why nothing of it was done: 'e' and the epoch here,
# 'n' and the last number kept here, 'x' and the server's words.
#
# A topic that has switched here and has not settled is in no epoch: what other brokers of the old placement have kept
# is not known yet, and must come first.
#
# An entry of a stream has the publisher, the version of the logs, the number of messages in the stream up to this one,
# and each topic with its batch. The last numbers are written by every call, so that an answer which says "kept before"
# waits for the replicas too. The first write comes before anything is published: a server without memory refuses all of
# it or nothing. Replicas get batches in the streams alone. Readers hear of it on the channel named like the stream.
APPEND = b"""
local logs = redis.call('HGET', 'nc:m', 'logs')
if logs ~= ARGV[1] then
  return logs or ''
end
local publisher, topics, names = ARGV[2], {}, {}
for i = 3, #ARGV, 6 do
  topics[#topics + 1] = ARGV[i]
  names[#names + 1] = ARGV[i] .. ':' .. publisher
end
local records = redis.call('HMGET', 'nc:r', unpack(topics))
local lasts = redis.call('HMGET', KEYS[1], unpack(names))
redis.call('HSETNX', KEYS[1], '', '')
local entry, numbers, replies = {'publisher', publisher, 'logs', logs, 'count', ''}, {}, {}
local added, size = 0, 0
redis.set_repl(redis.REPL_NONE)
for t = 1, #topics do
  local i = 3 + 6 * (t - 1)
  local epoch = records[t] and string.match(records[t], '"placement":%[(%d+),')
  if not epoch then
    epoch = redis.call('HGET', 'nc:first', topics[t])
  elseif not string.find(records[t], '"previous":null', 1, true) then
    epoch = nil
  end
  local last = tonumber(lasts[t] or redis.call('HGET', KEYS[2], names[t]) or '0')
  if epoch ~= ARGV[i + 1] then
    replies[t] = 'e' .. (epoch or '')
  elseif math.max(last + 1, tonumber(ARGV[i + 2])) ~= tonumber(ARGV[i + 3]) then
    replies[t] = string.format('n%.0f', last)
    numbers[#numbers + 1], numbers[#numbers + 2] = names[t], string.format('%.0f', last)
  else
    local receivers = redis.pcall('PUBLISH', topics[t], ARGV[i + 5])
    if type(receivers) == 'table' then
      replies[t] = 'x' .. receivers['err']
    else
      replies[t] = receivers
      entry[#entry + 1], entry[#entry + 2] = topics[t], ARGV[i + 5]
      numbers[#numbers + 1], numbers[#numbers + 2] = names[t], ARGV[i + 4]
      added = added + tonumber(ARGV[i + 4]) - tonumber(ARGV[i + 3]) + 1
      size = size + #ARGV[i + 5]
    end
  end
end
if added > 0 then
  for k = 4, #KEYS do
    redis.pcall('PUBLISH', KEYS[k], '')
  end
end
redis.set_repl(redis.REPL_ALL)
if #numbers > 0 then
  redis.call('HSET', KEYS[1], unpack(numbers))
end
if added > 0 then
  for k = 4, #KEYS do
    entry[6] = redis.call('HINCRBY', KEYS[3], KEYS[k], added)
    redis.call('HINCRBY', KEYS[3], KEYS[k] .. ':bytes', size)
    redis.call('XADD', KEYS[k], '*', unpack(entry))
  end
end
return replies
"""

# ARGV: stream, id, count, bytes. Returns the entries after the id, at most so many; the one that reaches the bytes is
# the last. No keys: readers have no right to write there. A server closes a connection that owes too much at once.
PAGE = b"""
local found, after, count, size = {}, ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
repeat
  local asked = math.min(10, count - #found)
  local some = redis.call('XRANGE', ARGV[1], '(' .. after, '+', 'COUNT', asked)
  for _, entry in ipairs(some) do
    if size <= 0 then
      return found
    end
    found[#found + 1] = entry
    after = entry[1]
    for _, field in ipairs(entry[2]) do
      size = size - #field
    end
  end
until #some < asked or #found >= count
return found
"""

# KEYS: last numbers, older last numbers. ARGV: topic and publisher. Returns the last number kept, and writes it again:
# a WAIT behind a mere reading would say nothing about the replicas.
CONFIRM = b"""
local last = redis.call('HGET', KEYS[1], ARGV[1]) or redis.call('HGET', KEYS[2], ARGV[1]) or '0'
redis.call('HSET', KEYS[1], ARGV[1], last)
return last
"""

# How a group reads a part. A cursor is the text "TERM OWNER BEAT STATE"; without an owner it is "-". Only its owner
# moves it, in its own term.
ADVANCE = b"""
local function advance(key, group, owner, term, state, release)
  local cursor = redis.call('HGET', key, 'g:' .. group) or ''
  local now, holder, beat = string.match(cursor, '^(%d+) (%S+) (%d+) ')
  if holder ~= owner or now ~= term then
    return cursor
  end
  if release then
    holder = '-'
  end
  cursor = table.concat({now, holder, string.format('%.0f', tonumber(beat) + 1), state}, ' ')
  redis.call('HSET', key, 'g:' .. group, cursor)
  return cursor
end
"""

# KEYS: cursors. ARGV: group, owner, term, state, 1 to release the part. Returns the cursor that is there now.
COMMIT = (
    ADVANCE
    + b"""
return advance(KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1')
"""
)

# KEYS: cursors. ARGV: group, member, the beat of the owner that it has seen unchanged for too long (-1: none), the
# state of a new cursor or nothing, 1 if the member wants the part. Returns the cursor, then the other members that are
# connected, each with its beat; those that are not are forgotten. The members of a group are one field, a text of names
# and beats, so that many groups of one part cost no more than their members. Whoever may read in groups can write
# anything there: what is no cursor is returned as it is.
TAKE = b"""
local function connected(member)
  return redis.call('PUBSUB', 'NUMSUB', 'nc:i:' .. member)[2] > 0
end
local field, found, members, own = 'm:' .. ARGV[1], {''}, {}, 0
for member, beat in string.gmatch(redis.call('HGET', KEYS[1], field) or '', '(%S+) (%d+)') do
  if member == ARGV[2] then
    own = tonumber(beat)
  elseif connected(member) then
    found[#found + 1], found[#found + 2] = member, beat
    members[#members + 1] = member .. ' ' .. beat
  end
end
members[#members + 1] = string.format('%s %.0f', ARGV[2], own + 1)
redis.call('HSET', KEYS[1], field, table.concat(members, ' '))
local cursor = redis.call('HGET', KEYS[1], 'g:' .. ARGV[1])
if not cursor or cursor == '' then
  if ARGV[4] == '' then
    return found
  end
  cursor = '0 - 0 ' .. ARGV[4]
  redis.call('HSET', KEYS[1], 'g:' .. ARGV[1], cursor)
end
local term, owner, beat, state = string.match(cursor, '^(%d+) (%S+) (%d+) (.+)$')
if term and ARGV[5] == '1' and owner ~= ARGV[2] and (owner == '-' or beat == ARGV[3] or not connected(owner)) then
  term, beat, owner = string.format('%.0f', tonumber(term) + 1), string.format('%.0f', tonumber(beat) + 1), ARGV[2]
  cursor = table.concat({term, owner, beat, state}, ' ')
  redis.call('HSET', KEYS[1], 'g:' .. ARGV[1], cursor)
end
found[1] = cursor
return found
"""
