"""The store behind the controller: a leader's term, and a versioned map that changes by compare-and-set.

`Store` says what a store must do, `ValkeyStore` does it on a server, `MemoryStore` in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from nearcast.core.controller.effects import Leadership
from nearcast.core.model.names import ENTRIES_KEY, LEADER_KEY, TERM_KEY, VERSION_KEY
from nearcast.core.wire.link import Reply
from nearcast.errors import ClusterError
from nearcast.runtime.requester import Requester


class Store(Protocol):
    """What a store must do. `tests/contract/test_store.py` tests every implementation."""

    async def campaign(self, candidate: str, stale: str, above: int = 0) -> Leadership:
        """Become or stay the leader. Returns the term if it is us, how the leadership is held now, and the version.

        Each campaign of the leader changes how the leadership is held. A candidate that names how it is held now gets
        it: by this it says that it has watched long enough to know that the leadership is not being renewed. The store
        needs no clock for that. A new leader gets a higher term, which is also higher than `above`: a store that has
        lost its data may have given out those terms before.
        """
        ...

    async def resign(self, candidate: str) -> None:
        """Let another candidate lead at once, if this one leads."""
        ...

    async def load(self, take: Callable[[dict[str, bytes]], None]) -> int:
        """Hand over all entries as of one moment, part by part; returns the version. Fails if they change meanwhile.

        For the newest leader they do not, because no one else can commit.
        """
        ...

    async def commit(self, version: int, term: int, changes: dict[str, bytes]) -> bool:
        """Write all changes and raise the version by one, if version and term are still the newest; else nothing."""
        ...

    async def close(self) -> None: ...


# --- in memory


class MemoryStore:
    """A store in memory, for simulations."""

    def __init__(self) -> None:
        self._leader = ""
        self._beats = 0
        self._term = 0
        self._version = 0
        self._entries: dict[str, bytes] = {}

    @property
    def _held(self) -> str:
        return f"{self._leader}#{self._beats}" if self._leader else ""

    def campaign_now(self, candidate: str, stale: str, above: int = 0) -> Leadership:
        if self._leader != candidate:
            if self._held not in ("", stale):
                return Leadership(None, self._held, self._version)
            self._leader = candidate
            self._term = max(self._term, above) + 1
        self._beats += 1
        return Leadership(self._term, self._held, self._version)

    def resign_now(self, candidate: str) -> None:
        if self._leader == candidate:
            self._leader = ""

    def load_now(self) -> tuple[int, dict[str, bytes]]:
        return self._version, dict(self._entries)

    def commit_now(self, version: int, term: int, changes: dict[str, bytes]) -> bool:
        if (version, term) != (self._version, self._term):
            return False
        self._entries.update(changes)
        self._version += 1
        return True

    async def campaign(self, candidate: str, stale: str, above: int = 0) -> Leadership:
        return self.campaign_now(candidate, stale, above)

    async def resign(self, candidate: str) -> None:
        self.resign_now(candidate)

    async def load(self, take: Callable[[dict[str, bytes]], None]) -> int:
        version, entries = self.load_now()
        take(entries)
        return version

    async def commit(self, version: int, term: int, changes: dict[str, bytes]) -> bool:
        return self.commit_now(version, term, changes)

    async def close(self) -> None:
        pass


# --- on a server


# KEYS: leader, term, version. ARGV: candidate, the value that has gone stale, a term to be above.
# Returns {the term if the candidate leads, else 0; how the leadership is held; the version}.
# The leader's key is CANDIDATE#RENEWALS and does not expire, because the server's clock may be set back or forward.
_CAMPAIGN = b"""
local held, term, version = redis.call('GET', KEYS[1]) or '', 0, tonumber(redis.call('GET', KEYS[3]) or '0')
local leader, renewals = string.match(held, '^(.*)#(%d+)$')
if leader == ARGV[1] then
  term = tonumber(redis.call('GET', KEYS[2]))
elseif held == '' or held == ARGV[2] then
  term = math.max(tonumber(redis.call('GET', KEYS[2]) or '0'), tonumber(ARGV[3])) + 1
  redis.call('SET', KEYS[2], string.format('%d', term))
else
  return {0, held, version}
end
held = ARGV[1] .. '#' .. string.format('%d', (tonumber(renewals) or 0) + 1)
redis.call('SET', KEYS[1], held)
return {term, held, version}
"""

# KEYS: entries, version, term. ARGV: version, term, then (key, value) repeated. Returns 1 if written.
_COMMIT = b"""
if (redis.call('GET', KEYS[2]) or '0') ~= ARGV[1] or redis.call('GET', KEYS[3]) ~= ARGV[2] then return 0 end
for i = 3, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
redis.call('INCR', KEYS[2])
return 1
"""

# KEYS: leader. ARGV: candidate.
_RESIGN = b"""
if string.match(redis.call('GET', KEYS[1]) or '', '^(.*)#%d+$') == ARGV[1] then redis.call('DEL', KEYS[1]) end
"""

SCAN_COUNT = 2000  # entries in one step of a load: a few milliseconds of the server's time, and of ours


class ValkeyStore:
    """A store on a Valkey or Redis server, with four keys and three scripts.

    Leadership calls have their own connection, so they get through while a long journal is read or a large commit is in
    flight.
    """

    def __init__(self, url: str) -> None:
        self._requester = Requester(url)
        self._leading = Requester(url)

    async def campaign(self, candidate: str, stale: str, above: int = 0) -> Leadership:
        reply = await _run(self._leading, _CAMPAIGN, [LEADER_KEY, TERM_KEY, VERSION_KEY], candidate, stale, above)
        assert isinstance(reply, list)
        term, held, version = reply
        return Leadership(int(term) or None, held.decode(), int(version))

    async def resign(self, candidate: str) -> None:
        await _run(self._leading, _RESIGN, [LEADER_KEY], candidate)

    async def load(self, take: Callable[[dict[str, bytes]], None]) -> int:
        version, cursor = await self._version(), b"0"
        while True:
            reply = _checked(await self._requester.ask("HSCAN", ENTRIES_KEY, cursor, "COUNT", SCAN_COUNT))
            assert isinstance(reply, list)
            cursor, flat = reply
            take({key.decode(): value for key, value in zip(flat[::2], flat[1::2], strict=True)})
            if cursor == b"0":
                break
        if await self._version() != version:
            raise ClusterError("the journal changed while it was read: another controller leads")
        return version

    async def _version(self) -> int:
        version = _checked(await self._requester.ask("GET", VERSION_KEY))
        return int(version) if isinstance(version, bytes) else 0

    async def commit(self, version: int, term: int, changes: dict[str, bytes]) -> bool:
        pairs: list[bytes | str] = []
        for key, value in changes.items():
            pairs += (key, value)
        return await _run(self._requester, _COMMIT, [ENTRIES_KEY, VERSION_KEY, TERM_KEY], version, term, *pairs) == 1

    async def close(self) -> None:
        await self._requester.close()
        await self._leading.close()


async def _run(requester: Requester, script: bytes, keys: list[str], *arguments: bytes | str | int) -> Reply:
    return _checked(await requester.ask("EVAL", script, len(keys), *keys, *arguments))


def _checked(reply: Reply) -> Reply:
    if isinstance(reply, Exception):
        raise ClusterError(f"the store refused: {reply}")
    return reply
