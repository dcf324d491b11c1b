"""The directory of a gateway's users on the store's server: subscriptions, cursors, and when each was last seen.

    nc:u:USER      hash: home -> broker; s:ID -> {"channel", "parameters", "from", "cursor"};
                   seen -> the hour in which the user was last seen; see users.py for the rest
    nc:f:BROKER:ID set of the users who hold backend subscription ID at that broker
    nc:gateways    hash: broker -> URL of its gateway
    nc:data        {"url"} of the data cluster while it runs (written by it)
    nc:hours       hash: count -> how many hours; at -> when the last one was counted, in seconds since the Unix epoch

`Directory` holds users and their subscriptions. `Attendance` forgets users who stay away. Both use a `StoreConnection`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from nearcast.core.model.names import DATA_KEY, GATEWAYS_KEY, HOLDERS_KEY, HOURS_KEY, USER_KEY
from nearcast.core.model.tokens import ENDED
from nearcast.core.wire.backend import Credentials
from nearcast.core.wire.link import Reply, is_error
from nearcast.errors import ClusterError, Refused
from nearcast.runtime.requester import Requester

# --- the store's server


class StoreConnection:
    """One connection to the store's server, opened when needed. Each request gets an answer or raises ClusterError."""

    def __init__(self, url: str, credentials: Credentials | None = None) -> None:
        """`credentials` are used for a URL that carries none."""
        self._requester = Requester(url, credentials)

    async def ask(self, *parts: bytes | str | int) -> Reply:
        answer = await self._requester.ask(*parts)
        if is_error(answer):
            raise ClusterError(f"the store refused {parts[0]!s}: {answer}")
        return answer

    async def close(self) -> None:
        await self._requester.close()


_SCAN_COUNT = 1000

# KEYS: the user's hash, the holders' set. ARGV: registration, user, field, entry. Returns the entry now there.
_ADD = """
if redis.call('HGET', KEYS[1], 'registered') ~= ARGV[1] then return false end
redis.call('SADD', KEYS[2], ARGV[2])
redis.call('HSETNX', KEYS[1], ARGV[3], ARGV[4])
return redis.call('HGET', KEYS[1], ARGV[3])
"""

# KEYS: the user's hash, the hours, holders' sets. ARGV: registration, user, broker.
_SETTLE = """
if redis.call('HGET', KEYS[1], 'registered') ~= ARGV[1] then return false end
for i = 3, #KEYS do redis.call('SADD', KEYS[i], ARGV[2]) end
redis.call('HSET', KEYS[1], 'home', ARGV[3], 'seen', redis.call('HGET', KEYS[2], 'count') or '0')
return 1
"""

# KEYS: the user's hash, holders' sets. ARGV: user, broker. Returns whether the user's home is elsewhere, and she left.
_LEAVE = """
if redis.call('HGET', KEYS[1], 'home') == ARGV[2] then return 0 end
for i = 2, #KEYS do redis.call('SREM', KEYS[i], ARGV[1]) end
return 1
"""

# KEYS: users' hashes. ARGV: for each, a field and a cursor. The cursor is the last field of an entry, and the rest is
# kept as it is: Lua would rewrite the numbers in the parameters with fewer digits.
_ADVANCE = r"""
for i = 1, #KEYS do
  local field, cursor = ARGV[2 * i - 1], ARGV[2 * i]
  local entry = redis.call('HGET', KEYS[i], field)
  local head, stored
  if entry then head, stored = string.match(entry, '^(.*"cursor":)(%d+)}$') end
  if head and tonumber(cursor) > tonumber(stored) then redis.call('HSET', KEYS[i], field, head .. cursor .. '}') end
end
"""


class Entry(msgspec.Struct, frozen=True):
    """A frontend subscription as stored. `cursor` must stay the last field, see `_ADVANCE`."""

    channel: str
    parameters: dict[str, Any]
    from_execution: int = msgspec.field(name="from")
    cursor: int = 0


class _DataAddress(msgspec.Struct):
    url: str


# --- users and their subscriptions


_entry = msgspec.json.Decoder(Entry)
_data_address = msgspec.json.Decoder(_DataAddress)


class Directory:
    """Users and their subscriptions, which a gateway that restarts finds here again.

    Raises ClusterError while the store cannot be reached.

    Cursors only grow, in whatever order they are written. Nothing is written for a user whose registration is not the
    one that logged in, because she has been reset or removed in the meantime.
    """

    def __init__(self, store: StoreConnection) -> None:
        self._ask = store.ask

    async def data_url(self) -> str:
        """Where the data cluster is; empty if it is not running."""
        found = await self._ask("GET", DATA_KEY)
        return _data_address.decode(_bytes(found)).url if found is not None else ""

    # --- gateways

    async def announce(self, broker: str, url: str) -> None:
        await self._ask("HSET", GATEWAYS_KEY, broker, url)

    async def withdraw(self, broker: str) -> None:
        await self._ask("HDEL", GATEWAYS_KEY, broker)

    async def gateways(self) -> dict[str, str]:
        return _texts(await self._ask("HGETALL", GATEWAYS_KEY))

    # --- users

    async def entries(self, user: str) -> dict[str, Entry]:
        """The user's subscriptions."""
        stored = await self._ask("HGETALL", USER_KEY + user)
        assert isinstance(stored, dict)
        return {key.decode()[2:]: _entry.decode(value) for key, value in stored.items() if key.startswith(b"s:")}

    async def add(self, user: str, registration: str, broker: str, subscription: str, entry: Entry) -> Entry:
        """Record that the user holds it at the broker. Returns what is stored: an earlier entry stays."""
        keys = (USER_KEY + user, f"{HOLDERS_KEY}{broker}:{subscription}")
        values = (registration, user, f"s:{subscription}", msgspec.json.encode(entry))
        stored = await self._ask("EVAL", _ADD, len(keys), *keys, *values)
        if stored is None:
            raise Refused(ENDED)
        return _entry.decode(_bytes(stored))

    async def remove(self, user: str, broker: str, subscription: str) -> None:
        """The user no longer has the subscription."""
        await self._ask("HDEL", USER_KEY + user, f"s:{subscription}")
        await self._ask("SREM", f"{HOLDERS_KEY}{broker}:{subscription}", user)

    async def leave(self, user: str, broker: str, subscriptions: Iterable[str]) -> bool:
        """The user no longer holds these at the broker, but still has them. False: the broker is her home."""
        keys = [USER_KEY + user, *(f"{HOLDERS_KEY}{broker}:{subscription}" for subscription in subscriptions)]
        return await self._ask("EVAL", _LEAVE, len(keys), *keys, user, broker) == 1

    async def settle(self, user: str, registration: str, broker: str, subscriptions: Iterable[str]) -> None:
        """The user's home is this broker, and she holds these there."""
        keys = [
            USER_KEY + user,
            HOURS_KEY,
            *(f"{HOLDERS_KEY}{broker}:{subscription}" for subscription in subscriptions),
        ]
        if await self._ask("EVAL", _SETTLE, len(keys), *keys, registration, user, broker) is None:
            raise Refused(ENDED)

    async def homes(self, users: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for user in users:
            home = await self._ask("HGET", USER_KEY + user, "home")
            found[user] = _bytes(home).decode() if home is not None else ""
        return found

    async def advance(self, cursors: Sequence[tuple[str, str, int]]) -> None:
        """Store cursors: user, subscription, execution. A cursor below the stored one changes nothing."""
        if not cursors:
            return
        keys = [USER_KEY + user for user, _, _ in cursors]
        values = [value for _, subscription, execution in cursors for value in (f"s:{subscription}", execution)]
        await self._ask("EVAL", _ADVANCE, len(keys), *keys, *values)

    async def holders(self, broker: str) -> dict[str, list[str]]:
        """The users of each backend subscription the broker holds."""
        found: dict[str, list[str]] = {}
        prefix = f"{HOLDERS_KEY}{broker}:"
        cursor: bytes | int = 0
        while True:
            answer = await self._ask("SCAN", cursor, "MATCH", f"{prefix}*", "COUNT", _SCAN_COUNT)
            assert isinstance(answer, list)
            cursor, keys = answer
            for key in keys:
                users = await self._ask("SMEMBERS", key)
                assert isinstance(users, (list, set))
                found[key.decode().removeprefix(prefix)] = sorted(user.decode() for user in users)
            if int(cursor) == 0:
                return found


def _bytes(reply: Reply) -> bytes:
    assert isinstance(reply, bytes)
    return reply


def _texts(reply: Reply) -> dict[str, str]:
    assert isinstance(reply, dict)
    return {key.decode(): value.decode() for key, value in reply.items()}


# --- users who stay away


log = logging.getLogger("nearcast.gateway")

ROUND_S = 60.0
USERS_A_ROUND = 1000  # looked at, about
FORGOTTEN_A_ROUND = 100

# KEYS: the hours.
_COUNT = """
local at, now = tonumber(redis.call('HGET', KEYS[1], 'at')), tonumber(redis.call('TIME')[1])
if at and now >= at and now < at + 3600 then return end
if at and now >= at then redis.call('HINCRBY', KEYS[1], 'count', 1) end
redis.call('HSET', KEYS[1], 'at', now)
"""

# KEYS: the hours, users' hashes. ARGV: after how many hours, how many at most. Returns the users that were forgotten.
_FORGET = """
local hours, forgotten = tonumber(redis.call('HGET', KEYS[1], 'count') or 0), {}
for i = 2, #KEYS do
  local seen = tonumber(redis.call('HGET', KEYS[i], 'seen'))
  if redis.call('EXISTS', KEYS[i]) == 0 then seen = hours end -- removed meanwhile
  if not seen or seen > hours then redis.call('HSET', KEYS[i], 'seen', hours)
  elseif hours - seen > tonumber(ARGV[1]) and #forgotten < tonumber(ARGV[2]) then
    redis.call('DEL', KEYS[i])
    forgotten[#forgotten + 1] = KEYS[i]
  end
end
return forgotten
"""


class Attendance:
    """Notes when users were last seen, and forgets those who have stayed away for long. Kept by every gateway.

    Time is counted in hours during which gateways run: a counter in the store, which one of them advances by at most
    one per hour of the store's clock. So a clock that jumps ahead by a year counts as one hour, and so does an outage
    of all gateways. Each round forgets only a limited number of the users it looks at, and their gateways release what
    they held as if the operator had removed them. If `forget_days` is None, no user is forgotten.
    """

    def __init__(self, store: StoreConnection, forget_days: float | None) -> None:
        self._store = store
        self._forget_hours = forget_days * 24 if forget_days is not None else None
        self._cursor: bytes | int = 0

    async def keep(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(ROUND_S)
            try:
                await self.count()
                await self.forget()
            except ClusterError as error:
                log.info("cannot check which users have stayed away until the store answers: %s", error)

    async def count(self) -> None:
        await self._store.ask("EVAL", _COUNT, 1, HOURS_KEY)

    async def forget(self) -> None:
        """One round, over some of the users."""
        if self._forget_hours is None:
            return
        answer = await self._store.ask("SCAN", self._cursor, "MATCH", f"{USER_KEY}*", "COUNT", USERS_A_ROUND)
        assert isinstance(answer, list)
        cursor, keys = answer
        limits = (int(self._forget_hours), FORGOTTEN_A_ROUND)
        forgotten = await self._store.ask("EVAL", _FORGET, 1 + len(keys), HOURS_KEY, *keys, *limits) if keys else []
        assert isinstance(forgotten, list)
        names = [key.decode().removeprefix(USER_KEY) for key in forgotten]
        if names:
            log.info("forgot %d users not seen for %g days: %s", len(names), limits[0] / 24, ", ".join(names))
        if len(names) < FORGOTTEN_A_ROUND:
            self._cursor = cursor  # otherwise there may be more to forget in this part
