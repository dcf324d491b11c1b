"""Revocation: sessions end when their tokens do, because the user was reset or removed, or the key was taken away.

A token that merely expires ends no session: it is looked at when somebody logs in. While the store is away, or has no
keys at all, as after it lost its memory, nobody is sent away.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from nearcast.errors import ClusterError
from nearcast.gateway.tokens import ENDED, KEY_GONE, Key, Token

if TYPE_CHECKING:
    from nearcast.gateway.service import Gateway

log = logging.getLogger("nearcast.gateway")

CHECK_S = 2.0  # between two looks at all users with a session


class Revocation:
    """Of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            try:
                await self.check()
            except ClusterError as error:
                log.info("whether users are still registered waits for the store: %s", error)

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
