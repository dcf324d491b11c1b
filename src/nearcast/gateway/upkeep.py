"""Upkeep: what a gateway does now and then. It stores cursors, and lets go of users who are at home elsewhere."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from nearcast.errors import ClusterError
from nearcast.gateway.session import Session

if TYPE_CHECKING:
    from nearcast.gateway.service import Gateway

log = logging.getLogger("nearcast.gateway")

STORE_S = 1.0  # between two times that acknowledged cursors are stored
SWEEP_S = 5.0  # between two looks for users who are at home elsewhere now
SWEEP_USERS = 1000  # looked at each time


class Upkeep:
    """Of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._swept: list[str] = []

    async def store_cursors(self) -> None:
        while True:
            await asyncio.sleep(STORE_S)
            try:
                await self.store_all()
            except ClusterError as error:
                log.info("cursors wait for the store: %s", error)

    async def store_all(self) -> None:
        await self.store(self._gateway.open_sessions)

    async def store(self, sessions: list[Session]) -> None:
        taken = [(session, session.take_acknowledged()) for session in sessions]
        cursors = [(session.user, *cursor) for session, cursors in taken for cursor in cursors.items()]
        try:
            await self._gateway.directory.advance(cursors)
        except ClusterError:
            for session, acknowledged in taken:
                session.put_back_acknowledged(acknowledged)
            raise

    async def store_cursors_of(self, user: str) -> None:
        """Before the user's entries are read for another session."""
        session = self._gateway.session_of(user)
        if session is not None:
            await self.store([session])

    async def sweep(self) -> None:
        sharing = self._gateway.sharing
        while True:
            await asyncio.sleep(SWEEP_S)
            self._swept = self._swept or [user for user in sharing.users if self._gateway.session_of(user) is None]
            users, self._swept = self._swept[:SWEEP_USERS], self._swept[SWEEP_USERS:]
            try:
                await self.let_go_of_strangers(users)
            except ClusterError as error:
                log.info("users at home elsewhere wait for the store: %s", error)

    async def let_go_of_strangers(self, users: list[str]) -> None:
        """Users without a session here who are at home at another broker now hold nothing here any more."""
        gateway = self._gateway
        for user in users:
            subscriptions = list(gateway.sharing.held_by(user))
            # She may come back while the store is asked: what she holds then must stay.
            if not gateway.is_here(user) and await gateway.directory.leave(user, gateway.broker, subscriptions):
                for subscription in subscriptions if not gateway.is_here(user) else ():
                    gateway.let_go(user, subscription)
