"""A session over plain HTTP: frames are fetched by long polls, and stay until the next poll confirms them.

    POST /session {"user", "token", "cursors"}       -> {"session": ID}
    GET  /session/ID/frames?after=N&wait_s=20        -> {"frames": [...], "last": M}; then ask after=M
    POST /session/ID/frames FRAME or [FRAME, ...]    -> 202; answers come with the frames

An answer that gets lost is asked for again with the same `after`. A session without polls ends after `poll_s`.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque

import msgspec

from nearcast.errors import Refused
from nearcast.gateway.frames import Login, Logout, Operation
from nearcast.gateway.service import Gateway
from nearcast.gateway.session import Session, State

FRAMES_MAX = 100  # in one answer
BYTES_MAX = 1 << 20  # in one answer, beyond the first frame
WAIT_MAX_S = 30.0
_LOOK_S = 1.0  # between two looks for sessions without polls


class Polled:
    """One session: what was fetched and not confirmed yet stands in `_sent`, numbered."""

    def __init__(self, gateway: Gateway, address: str) -> None:
        self._gateway = gateway
        self._filled = asyncio.Event()
        self.session = gateway.open_session(address, self._filled.set)
        self._sent: deque[tuple[int, bytes]] = deque()
        self._last = 0
        self._polling = 0
        self._seen_s = self._now_s()

    @property
    def is_forgotten(self) -> bool:
        """Nobody polls any more."""
        return not self._polling and self._now_s() - self._seen_s > self._gateway.settings.poll_s

    @property
    def is_over(self) -> bool:
        """The session has ended, and its last frame was confirmed."""
        return self.session.state is State.ENDED and not self._sent and not len(self.session.outbox)

    async def receive(self, frames: list[msgspec.Raw]) -> None:
        self._seen_s = self._now_s()
        for frame in frames:
            if self.session.is_choked:
                raise Refused("too many frames wait for you: fetch them first")
            await self._carry_out(self.session.receive(bytes(frame)))

    async def _carry_out(self, asked: Login | Operation | Logout | None) -> None:
        if isinstance(asked, Logout):
            await self._gateway.logout(self.session)
            await self._gateway.close_session(self.session)  # what waits can still be fetched
        elif asked is not None and not isinstance(asked, Login):  # the login was the request that made the session
            self._gateway.perform(self.session, asked)

    async def frames(self, after: int, wait_s: float) -> tuple[list[bytes], int]:
        """Frames after a number, which confirms those up to it; waits for the first."""
        self._polling += 1
        try:
            while self._sent and self._sent[0][0] <= after:
                self._sent.popleft()
            if not self._sent:
                await self._fill(min(wait_s, WAIT_MAX_S))
            return [frame for _, frame in self._sent], self._last
        finally:
            self._polling -= 1
            self._seen_s = self._now_s()

    async def _fill(self, wait_s: float) -> None:
        deadline_s = self._now_s() + wait_s
        while not len(self.session.outbox) and self.session.state is not State.ENDED:
            self._filled.clear()
            try:
                async with asyncio.timeout(max(0.0, deadline_s - self._now_s())):
                    await self._filled.wait()
            except TimeoutError:
                return
        size = 0
        while len(self._sent) < FRAMES_MAX and size < BYTES_MAX and (frame := self.session.take()) is not None:
            self._last += 1
            self._sent.append((self._last, frame))
            size += len(frame)

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()


class LongPoll:
    """All long-poll sessions of a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._polled: dict[str, Polled] = {}

    async def open(self, address: str, login: Login) -> tuple[str, Session]:
        """A new session; it has ended if the login was refused."""
        polled = Polled(self._gateway, address)
        asked = polled.session.receive(msgspec.json.encode(login))
        assert isinstance(asked, Login)
        if not await self._gateway.login(polled.session, asked):
            await self._gateway.close_session(polled.session)
            return "", polled.session
        name = secrets.token_urlsafe(24)
        self._polled[name] = polled
        return name, polled.session

    def find(self, name: str) -> Polled | None:
        return self._polled.get(name)

    async def watch(self) -> None:
        """Close the sessions that have ended, or that nobody polls; until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for name, polled in list(self._polled.items()):
                if polled.is_forgotten or polled.is_over:
                    del self._polled[name]
                if polled.session.state is State.ENDED or polled.is_forgotten:
                    await self._gateway.close_session(polled.session)
