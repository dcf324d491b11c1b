"""The directory: users, their frontend subscriptions and cursors, on the store's server.

    nc:u:USER      hash: home -> broker; s:ID -> {"channel", "parameters", "from", "cursor"}; see users.py for the rest
    nc:f:BROKER:ID set of the users who hold backend subscription ID at that broker
    nc:gateways    hash: broker -> URL of its gateway
    nc:data        {"url"} of the data cluster while it runs (written by it)

A gateway that starts again finds here what it held. Cursors only grow, whoever writes them in whatever order. Nothing
is written for a user whose registration is not the one that logged in: she was reset or removed meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from nearcast.core.link import Reply
from nearcast.core.store_names import DATA_KEY, GATEWAYS_KEY, HOLDERS_KEY, HOURS_KEY, USER_KEY
from nearcast.errors import Refused
from nearcast.gateway.store import Store
from nearcast.gateway.tokens import ENDED

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

# KEYS: the user's hash, holders' sets. ARGV: user, broker. Returns whether the user was at home elsewhere, and left.
_LEAVE = """
if redis.call('HGET', KEYS[1], 'home') == ARGV[2] then return 0 end
for i = 2, #KEYS do redis.call('SREM', KEYS[i], ARGV[1]) end
return 1
"""

# KEYS: users' hashes. ARGV: for each, a field and a cursor. The cursor is the last field of an entry, and the rest is
# kept as it is: Lua would write the numbers in the parameters anew, with fewer digits.
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


_entry = msgspec.json.Decoder(Entry)
_data_address = msgspec.json.Decoder(_DataAddress)


class Directory:
    """Raises ClusterError while the store cannot be asked."""

    def __init__(self, store: Store) -> None:
        self._ask = store.ask

    async def data_url(self) -> str:
        """Where the data cluster is; empty if it does not run."""
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
        """Note that the user holds it at the broker. Returns what is stored: an earlier entry stays."""
        keys = (USER_KEY + user, f"{HOLDERS_KEY}{broker}:{subscription}")
        values = (registration, user, f"s:{subscription}", msgspec.json.encode(entry))
        stored = await self._ask("EVAL", _ADD, len(keys), *keys, *values)
        if stored is None:
            raise Refused(ENDED)
        return _entry.decode(_bytes(stored))

    async def remove(self, user: str, broker: str, subscription: str) -> None:
        """The user has it no longer."""
        await self._ask("HDEL", USER_KEY + user, f"s:{subscription}")
        await self._ask("SREM", f"{HOLDERS_KEY}{broker}:{subscription}", user)

    async def leave(self, user: str, broker: str, subscriptions: Iterable[str]) -> bool:
        """The user holds these at the broker no longer, but still has them. False: the broker is her home."""
        keys = [USER_KEY + user, *(f"{HOLDERS_KEY}{broker}:{subscription}" for subscription in subscriptions)]
        return await self._ask("EVAL", _LEAVE, len(keys), *keys, user, broker) == 1

    async def settle(self, user: str, registration: str, broker: str, subscriptions: Iterable[str]) -> None:
        """The user is at home at this broker, and holds these there."""
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
        """Store cursors: user, subscription, execution. One that is lower than the stored one changes nothing."""
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
