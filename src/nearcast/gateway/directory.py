"""The directory: users, their frontend subscriptions and cursors, on the store's server.

    nc:u:USER      hash: home -> broker; s:ID -> {"channel", "parameters", "from", "cursor"}; registered -> 1
    nc:f:BROKER:ID set of the users who hold backend subscription ID at that broker
    nc:gateways    hash: broker -> URL of its gateway
    nc:secret      the key of the tokens, made once
    nc:data        {"url"} of the data cluster while it runs (written by it)

A gateway that starts again finds here what it held. Cursors only grow, whoever writes them in whatever order.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from nearcast.core.link import Reply, is_error
from nearcast.errors import ClusterError
from nearcast.runtime.requester import Requester

SECRET_KEY = b"nc:secret"
GATEWAYS_KEY = b"nc:gateways"
DATA_KEY = b"nc:data"
_USER = "nc:u:"
_HOLDERS = "nc:f:"
_SECRET_BYTES = 32  # as long as the digest of HMAC-SHA256
_SCAN_COUNT = 1000

# KEYS: the user's hash, the holders' set. ARGV: field, entry, user. Returns the entry now there.
_ADD = """
redis.call('SADD', KEYS[2], ARGV[3])
redis.call('HSETNX', KEYS[1], ARGV[1], ARGV[2])
return redis.call('HGET', KEYS[1], ARGV[1])
"""

# KEYS: the user's hash, holders' sets. ARGV: user, broker.
_SETTLE = """
for i = 2, #KEYS do redis.call('SADD', KEYS[i], ARGV[1]) end
redis.call('HSET', KEYS[1], 'home', ARGV[2])
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
    """On one server. Raises ClusterError while that cannot be asked."""

    def __init__(self, store_url: str) -> None:
        self._store = Requester(store_url)

    async def close(self) -> None:
        await self._store.close()

    async def secret(self) -> bytes:
        await self._ask("SET", SECRET_KEY, secrets.token_bytes(_SECRET_BYTES), "NX")
        return _bytes(await self._ask("GET", SECRET_KEY))

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

    async def register(self, user: str) -> bool:
        """Whether the name was free."""
        return await self._ask("HSETNX", _USER + user, "registered", 1) == 1

    async def entries(self, user: str) -> dict[str, Entry]:
        """The user's subscriptions."""
        stored = await self._ask("HGETALL", _USER + user)
        assert isinstance(stored, dict)
        return {key.decode()[2:]: _entry.decode(value) for key, value in stored.items() if key.startswith(b"s:")}

    async def add(self, user: str, broker: str, subscription: str, entry: Entry) -> Entry:
        """Note that the user holds it at the broker. Returns what is stored: an earlier entry stays."""
        keys = (_USER + user, f"{_HOLDERS}{broker}:{subscription}")
        stored = await self._ask("EVAL", _ADD, 2, *keys, f"s:{subscription}", msgspec.json.encode(entry), user)
        return _entry.decode(_bytes(stored))

    async def remove(self, user: str, broker: str, subscription: str) -> None:
        """The user has it no longer."""
        await self._ask("HDEL", _USER + user, f"s:{subscription}")
        await self._ask("SREM", f"{_HOLDERS}{broker}:{subscription}", user)

    async def leave(self, user: str, broker: str, subscriptions: Iterable[str]) -> bool:
        """The user holds these at the broker no longer, but still has them. False: the broker is her home."""
        keys = [_USER + user, *(f"{_HOLDERS}{broker}:{subscription}" for subscription in subscriptions)]
        return await self._ask("EVAL", _LEAVE, len(keys), *keys, user, broker) == 1

    async def settle(self, user: str, broker: str, subscriptions: Iterable[str]) -> None:
        """The user is at home at this broker, and holds these there."""
        keys = [_USER + user, *(f"{_HOLDERS}{broker}:{subscription}" for subscription in subscriptions)]
        await self._ask("EVAL", _SETTLE, len(keys), *keys, user, broker)

    async def homes(self, users: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for user in users:
            home = await self._ask("HGET", _USER + user, "home")
            found[user] = _bytes(home).decode() if home is not None else ""
        return found

    async def advance(self, cursors: Sequence[tuple[str, str, int]]) -> None:
        """Store cursors: user, subscription, execution. One that is lower than the stored one changes nothing."""
        if not cursors:
            return
        keys = [_USER + user for user, _, _ in cursors]
        values = [value for _, subscription, execution in cursors for value in (f"s:{subscription}", execution)]
        await self._ask("EVAL", _ADVANCE, len(keys), *keys, *values)

    async def holders(self, broker: str) -> dict[str, list[str]]:
        """The users of each backend subscription the broker holds."""
        found: dict[str, list[str]] = {}
        prefix = f"{_HOLDERS}{broker}:"
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

    async def _ask(self, *parts: bytes | str | int) -> Reply:
        answer = await self._store.ask(*parts)
        if is_error(answer):
            raise ClusterError(f"the store refused {parts[0]!s}: {answer}")
        return answer


def _bytes(reply: Reply) -> bytes:
    assert isinstance(reply, bytes)
    return reply


def _texts(reply: Reply) -> dict[str, str]:
    assert isinstance(reply, dict)
    return {key.decode(): value.decode() for key, value in reply.items()}
