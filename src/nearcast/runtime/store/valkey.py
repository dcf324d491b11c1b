"""The store on a Valkey or Redis server: four keys and three scripts."""

from __future__ import annotations

from nearcast.core.link import Reply
from nearcast.errors import ClusterError
from nearcast.runtime.requester import Requester

_ENTRIES, _VERSION, _LEADER, _TERM = "nc:store", "nc:store:version", "nc:store:leader", "nc:store:term"

# KEYS: leader, term. ARGV: candidate, lease in ms. Returns the term if the candidate leads, else 0.
_CAMPAIGN = b"""
local leader = redis.call('GET', KEYS[1])
if leader and leader ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
if not leader then return redis.call('INCR', KEYS[2]) end
return tonumber(redis.call('GET', KEYS[2]))
"""

# KEYS: entries, version, term. ARGV: version, term, then (key, value) repeated. Returns 1 if written.
_COMMIT = b"""
if (redis.call('GET', KEYS[2]) or '0') ~= ARGV[1] or redis.call('GET', KEYS[3]) ~= ARGV[2] then return 0 end
for i = 3, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('INCR', KEYS[2])
return 1
"""

# KEYS: entries, version. One script, so that both are of one moment.
_LOAD = b"return {redis.call('GET', KEYS[2]) or '0', redis.call('HGETALL', KEYS[1])}"


class ValkeyStore:
    def __init__(self, url: str) -> None:
        self._requester = Requester(url)

    async def campaign(self, candidate: str, lease_s: float) -> int | None:
        term = await self._run(_CAMPAIGN, [_LEADER, _TERM], candidate, int(lease_s * 1000))
        return int(str(term)) or None

    async def load(self) -> tuple[int, dict[str, bytes]]:
        reply = await self._run(_LOAD, [_ENTRIES, _VERSION])
        assert isinstance(reply, list)
        version, flat = reply
        return int(version), {key.decode(): value for key, value in zip(flat[::2], flat[1::2], strict=True)}

    async def commit(self, version: int, term: int, changes: dict[str, bytes]) -> bool:
        pairs: list[bytes | str] = []
        for key, value in changes.items():
            pairs += (key, value)
        return await self._run(_COMMIT, [_ENTRIES, _VERSION, _TERM], version, term, *pairs) == 1

    async def close(self) -> None:
        await self._requester.close()

    async def _run(self, script: bytes, keys: list[str], *arguments: bytes | str | int) -> Reply:
        reply = await self._requester.ask("EVAL", script, len(keys), *keys, *arguments)
        if isinstance(reply, Exception):
            raise ClusterError(f"the store refused: {reply}")
        return reply
