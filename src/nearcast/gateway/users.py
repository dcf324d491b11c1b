"""Users on the store's server: their registrations, the keys that sign their tokens, and the end of revoked sessions.

    nc:u:USER      hash: registered -> id of the registration; seen: see directory.py; the rest is the directory's
    nc:keys        hash: number -> secret in hex, and for an earlier key the second since the Unix epoch when it ends

Gateways ask here at every login, and every two seconds for the users who are logged in. So what `nearcast users`
changes applies at once to logins, and soon to sessions.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.model import tokens
from nearcast.core.model.names import HOURS_KEY, KEYS_KEY, USER_KEY
from nearcast.core.model.tokens import ENDED, KEY_GONE, Key, Token
from nearcast.errors import ClusterError, Refused
from nearcast.gateway.directory import StoreConnection

if TYPE_CHECKING:
    from nearcast.gateway.service import Gateway


_SECRET_BYTES = 32  # as long as the digest of HMAC-SHA256
_REGISTRATION_BYTES = 8
_SCAN_COUNT = 1000
_USERS_AT_ONCE = 500

# KEYS: the keys. ARGV: a secret.
_FIRST_KEY = """
if redis.call('HLEN', KEYS[1]) == 0 then redis.call('HSET', KEYS[1], '1', ARGV[1]) end
"""

# KEYS: the keys. ARGV: a secret, the time, when the earlier keys end. Keys that have ended are removed.
_ROTATE = """
local newest, stored = 0, redis.call('HGETALL', KEYS[1])
for i = 1, #stored, 2 do
  local secret, ends = string.match(stored[i + 1], '^(%x+) ?(%d*)$')
  if not ends or ends == '' or tonumber(ends) > tonumber(ARGV[3]) then ends = ARGV[3] end
  if not secret or tonumber(ends) <= tonumber(ARGV[2]) then redis.call('HDEL', KEYS[1], stored[i])
  else redis.call('HSET', KEYS[1], stored[i], secret .. ' ' .. ends) end
  newest = math.max(newest, tonumber(stored[i]))
end
redis.call('HSET', KEYS[1], tostring(newest + 1), ARGV[1])
return newest + 1
"""

# KEYS: the user's hash, the hours. ARGV: a registration, whether one is expected already. Returns whether it was so.
_REGISTER = """
if redis.call('HEXISTS', KEYS[1], 'registered') ~= tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], 'registered', ARGV[1], 'seen', redis.call('HGET', KEYS[2], 'count') or '0')
return 1
"""

# KEYS: the hours, users' hashes. ARGV: whether they are here. Returns their registrations.
_REGISTRATIONS = """
local found, hours = {}, redis.call('HGET', KEYS[1], 'count') or '0'
for i = 2, #KEYS do
  local stored = redis.call('HMGET', KEYS[i], 'registered', 'seen')
  found[i - 1] = stored[1] or ''
  if ARGV[1] == '1' and stored[1] and stored[2] ~= hours then redis.call('HSET', KEYS[i], 'seen', hours) end
end
return found
"""


class User(msgspec.Struct, frozen=True):
    """One registered user, as shown to people."""

    name: str
    home: str  # the broker where she last was; empty if she has never logged in
    subscriptions: int
    unseen_hours: int  # counted while gateways ran


# --- registrations and keys


class Users:
    """Registers users and issues their tokens, which are valid for `life_s`.

    Raises ClusterError while the store cannot be reached.
    """

    def __init__(self, store: StoreConnection, life_s: float = tokens.LIFE_S) -> None:
        self._store = store
        self._life_s = life_s

    # --- tokens

    async def register(self, user: str) -> str:
        """A token for a new user; Refused if the name is taken, UsageError if it is not a valid name."""
        tokens.checked_new_user(user)
        registration = secrets.token_hex(_REGISTRATION_BYTES)
        if not await self._registered(user, registration, again=False):
            raise Refused(
                f"user {user!r} is already registered: present its token (token=...), choose another name, "
                f"or have the operator issue a new token: nearcast users reset {user}"
            )
        return await self._issue(user, registration)

    async def reset(self, user: str) -> str:
        """A token for a new registration of a known user: earlier tokens end. Subscriptions stay."""
        registration = secrets.token_hex(_REGISTRATION_BYTES)
        if not await self._registered(user, registration, again=True):
            raise Refused(f"there is no user {user!r}: see nearcast users list")
        return await self._issue(user, registration)

    async def _registered(self, user: str, registration: str, *, again: bool) -> bool:
        keys = (USER_KEY + user, HOURS_KEY)
        return await self._store.ask("EVAL", _REGISTER, len(keys), *keys, registration, int(again)) == 1

    async def remove(self, user: str) -> None:
        """Free the name. Gateways let go of what the user held when they see that it is gone."""
        if await self._store.ask("DEL", USER_KEY + user) != 1:
            raise Refused(f"there is no user {user!r}: see nearcast users list")

    async def check(self, user: str, text: str) -> tuple[Token | None, str]:
        """The token if it is valid; otherwise what is wrong with it."""
        token = Token.read(text)
        if token is None:
            return None, tokens.NOT_A_TOKEN
        keys = await self.keys()
        registration = (await self.registrations([user]))[user]
        problem = token.problem(keys, user, registration, time.time())
        return (None, problem) if problem else (token, "")

    async def renew(self, user: str, token: Token) -> str:
        """A token of the same registration that is valid for longer."""
        return await self._issue(user, token.registration)

    async def _issue(self, user: str, registration: str) -> str:
        keys = await self.first_key()
        return tokens.issue(keys[max(keys)], user, registration, int(time.time() + self._life_s))

    async def registrations(self, users: Sequence[str], *, here: bool = False) -> dict[str, str]:
        """The registration of each; empty for an unregistered user. `here`: they have sessions, which is noted."""
        found: dict[str, str] = {}
        for start in range(0, len(users), _USERS_AT_ONCE):
            asked = users[start : start + _USERS_AT_ONCE]
            keys = (HOURS_KEY, *(USER_KEY + user for user in asked))
            answer = await self._store.ask("EVAL", _REGISTRATIONS, len(keys), *keys, int(here))
            assert isinstance(answer, list)
            found.update(zip(asked, (registration.decode() for registration in answer), strict=True))
        return found

    # --- keys

    async def keys(self) -> dict[int, Key]:
        stored = await self._store.ask("HGETALL", KEYS_KEY)
        assert isinstance(stored, dict)
        keys = (_key(number, text) for number, text in stored.items())
        return {key.number: key for key in keys if key is not None}

    async def first_key(self) -> dict[int, Key]:
        """The keys; makes one if there is none."""
        await self._store.ask("EVAL", _FIRST_KEY, 1, KEYS_KEY, secrets.token_hex(_SECRET_BYTES))
        return await self.keys()

    async def rotate(self, *, at_once: bool) -> int:
        """Make a new key; returns its number. Earlier keys end when their tokens do, or `at_once`, with all of them."""
        now_s = int(time.time())
        ends_s = now_s if at_once else int(now_s + self._life_s)
        answer = await self._store.ask("EVAL", _ROTATE, 1, KEYS_KEY, secrets.token_hex(_SECRET_BYTES), now_s, ends_s)
        assert isinstance(answer, int)
        return answer

    # --- all

    async def all(self) -> AsyncIterator[User]:
        """All users, in no order. One who comes or goes meanwhile may be included or not."""
        cursor: bytes | int = 0
        count = await self._store.ask("HGET", HOURS_KEY, "count")
        hours = int(count) if isinstance(count, bytes) else 0
        seen: set[bytes] = set()  # a scan may name one twice
        while True:
            answer = await self._store.ask("SCAN", cursor, "MATCH", f"{USER_KEY}*", "COUNT", _SCAN_COUNT)
            assert isinstance(answer, list)
            cursor, found = answer
            for key in found:
                if key not in seen and (user := await self._user(key, hours)) is not None:
                    seen.add(key)
                    yield user
            if int(cursor) == 0:
                return

    async def _user(self, key: bytes, hours: int) -> User | None:
        stored = await self._store.ask("HGETALL", key)
        assert isinstance(stored, dict)
        if b"registered" not in stored:
            return None
        subscriptions = sum(field.startswith(b"s:") for field in stored)
        unseen = max(0, hours - int(stored.get(b"seen", hours)))
        return User(key.decode().removeprefix(USER_KEY), stored.get(b"home", b"").decode(), subscriptions, unseen)


def _key(number: bytes, text: bytes) -> Key | None:
    """None for what is not a key: it makes no token valid, and the other keys still count."""
    secret, _, ends = text.decode("utf-8", "replace").partition(" ")
    try:
        return Key(int(number), bytes.fromhex(secret), float(ends or 0))
    except ValueError:
        return None


# --- revocation


log = logging.getLogger("nearcast.gateway")

CHECK_S = 2.0  # between two looks at all users with a session


class Revocation:
    """Ends sessions of one gateway whose tokens are revoked: the user was reset or removed, or the key was removed.

    A token that merely expires ends no session, because expiry is checked only at login. While the store is away, or
    has no keys at all, as after it lost its data, no session is ended.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def watch(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                await self.check()
            except ClusterError as error:
                log.info("cannot check whether users are still registered until the store answers: %s", error)

    async def check(self) -> None:
        users = self._gateway.users
        sessions = {session.user: session for session in self._gateway.open_sessions if session.is_open}
        keys = await users.keys()
        if not keys or not sessions:
            return
        now_s = time.time()
        registrations = await users.registrations(list(sessions), here=True)
        for user, session in sessions.items():
            problem = _problem(session.token, keys, registrations[user], now_s)
            if problem:
                log.info("a session of %s ends: %s", user, problem)
                session.end(problem, final=True)


def _problem(token: Token | None, keys: dict[int, Key], registration: str, now_s: float) -> str:
    assert token is not None  # of a session that is open
    key = keys.get(token.key)
    if key is None or not key.is_good(now_s):
        return KEY_GONE
    return "" if token.registration == registration else ENDED
