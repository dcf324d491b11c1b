"""The scripts that run on a server, each one atomic step of the protocol.

They use nothing but EVAL, so any Valkey or Redis server runs them. `sim/scripts.py` runs the same steps in Python;
a conformance test holds both to the same answers.
"""

from __future__ import annotations

# Any client may write a record, once, so there may be anything: what is no record counts as none. `record.py` has the
# bounds too.
_READ = b"""
local function read(text)
  local decoded, record = pcall(cjson.decode, text)
  if not decoded or type(record) ~= 'table' then return nil end
  local version, term = record['version'], record['term']
  if type(version) ~= 'number' or type(term) ~= 'number' or version % 1 ~= 0 or term % 1 ~= 0 then return nil end
  if version < 0 or version >= 2^34 or term < 0 or term >= 2^31 then return nil end
  return record
end
"""

# KEYS: records. ARGV: term, then (topic, version, record) repeated.
# Returns for each topic the version now on the server, or -1 if our term is older than the record's.
INSTALL = (
    _READ
    + b"""
local versions = {}
local term = tonumber(ARGV[1])
for i = 2, #ARGV, 3 do
  local topic, version = ARGV[i], tonumber(ARGV[i + 1])
  local stored, stored_version, stored_term = redis.call('HGET', KEYS[1], topic), -1, -1
  local record = stored and read(stored)
  if record then
    stored_version, stored_term = record['version'], record['term']
  end
  if term < stored_term then
    stored_version = -1
  elseif version >= stored_version then
    redis.call('HSET', KEYS[1], topic, ARGV[i + 2])
    redis.call('PUBLISH', 'nc:c:' .. topic, 'R' .. ARGV[i + 2])
    stored_version = version
  end
  versions[#versions + 1] = stored_version
end
return versions
"""
)

# KEYS: membership. ARGV: version, document. Returns the version now on the server.
# The news is the version alone: anybody may publish it, so who hears it reads the key.
INSTALL_MEMBERS = b"""
local stored = tonumber(redis.call('HGET', KEYS[1], 'version') or '-1')
if tonumber(ARGV[1]) >= stored then
  redis.call('HSET', KEYS[1], 'version', ARGV[1], 'document', ARGV[2])
  redis.call('PUBLISH', KEYS[1], ARGV[1])
  stored = tonumber(ARGV[1])
end
return {stored}
"""

# KEYS: claim. ARGV: who asks, the beat it has seen unchanged for too long (-1: none).
# Returns {holder, beat}: who asks has the claim, unless another one is there and not known to stand still.
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

# KEYS: records. ARGV: term, then topics. Returns the record of each, empty if it has none.
# From now on the controller knows of them: they are no longer those of a first use, which may end by themselves.
KEEP = (
    _READ
    + b"""
local found = {}
for i = 2, #ARGV do
  local stored = redis.call('HGET', KEYS[1], ARGV[i])
  local record = stored and read(stored)
  if record and record['term'] == 0 then
    stored = string.gsub(stored, '"term":0,', '"term":' .. ARGV[1] .. ',', 1)
    redis.call('HSET', KEYS[1], ARGV[i], stored)
  end
  found[#found + 1] = stored or ''
end
return found
"""
)

# KEYS: records. ARGV: membership version by which this server is the directory of the topics, then topics.
# Deletes the records of first uses that no publisher and no subscriber holds. Returns how many.
END_UNUSED = (
    _READ
    + b"""
if redis.call('HGET', 'nc:m', 'version') ~= ARGV[1] then
  return {0}
end
local ended = 0
for i = 2, #ARGV do
  local stored = redis.call('HGET', KEYS[1], ARGV[i])
  local record = stored and read(stored)
  if record and record['term'] == 0 then
    local held = redis.call('PUBSUB', 'NUMSUB', ARGV[i], 'nc:c:' .. ARGV[i])
    if held[2] == 0 and held[4] == 0 then
      ended = ended + redis.call('HDEL', KEYS[1], ARGV[i])
    end
  end
end
return {ended}
"""
)

# KEYS: records. ARGV: membership version the client believes in, record for a first use, then topics.
# Returns {'records', record...} or {'stale', membership}: a directory speaks only to those who share its view of the
# ring. The record of a first use names the directory and nothing of the topic, so one serves all topics of a question.
# The membership is not among the keys: EVAL asks for the right to write to all of them, and no client may have it.
FIRST_USE = b"""
local version = redis.call('HGET', 'nc:m', 'version')
if version ~= ARGV[1] then
  return {'stale', redis.call('HGET', 'nc:m', 'document') or ''}
end
local found = {'records'}
for i = 3, #ARGV do
  redis.call('HSETNX', KEYS[1], ARGV[i], ARGV[2])
  found[#found + 1] = redis.call('HGET', KEYS[1], ARGV[i])
end
return found
"""
