"""Attendance: when users were here last, and an end to those who have not come for long.

Time is counted in hours while gateways run: a counter in the store, which one of them moves on by one at most once in
an hour of the store's clock. A clock that jumps ahead by a year so counts as an hour, and an outage of all gateways as
an hour too. Of the users that a round looks at, only so many are forgotten, and what they held is let go by their
gateways as if the operator had removed them.

    nc:hours       hash: count -> how many hours; at -> when the last one was counted, in seconds since the Unix epoch
    nc:u:USER      hash: seen -> the hour in which the user was here last; see users.py for the rest
"""

from __future__ import annotations

import asyncio
import logging

from nearcast.core.store_names import HOURS_KEY, USER_KEY
from nearcast.errors import ClusterError
from nearcast.gateway.store import Store

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

# KEYS: the hours, users' hashes. ARGV: after how many hours, how many at most. Returns those who were forgotten.
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
    """Kept by every gateway; `forget_days` may be None: nobody is forgotten."""

    def __init__(self, store: Store, forget_days: float | None) -> None:
        self._store = store
        self._forget_hours = forget_days * 24 if forget_days is not None else None
        self._cursor: bytes | int = 0

    async def keep(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(ROUND_S)
            try:
                await self.count()
                await self.forget()
            except ClusterError as error:
                log.info("who has not been seen for long waits for the store: %s", error)

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
            log.info("%d users not seen for %g days are forgotten: %s", len(names), limits[0] / 24, ", ".join(names))
        if len(names) < FORGOTTEN_A_ROUND:
            self._cursor = cursor  # else there may be more among these
