"""A line: a client's session at one gateway. During a move a client has two."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from nearcast.errors import AuthenticationFailed, ConnectFailed, ProtocolError, Refused
from nearcast.gateway.carriers import Carrier
from nearcast.gateway.frames import LOGGED_OUT, Ack, Bye, Done, FromGateway, Login, Logout, Operation, Welcome
from nearcast.gateway.frames import Refused as RefusedFrame

log = logging.getLogger("nearcast.subscriber")

WELCOME_S = 15.0  # the gateway may wait for the data cluster
LEAVE_S = 5.0  # for the answers and frames that are still on their way


class Line:
    """`receive(line, frame)` gets every frame that is no answer to an operation."""

    def __init__(self, url: str, carrier: Carrier, receive: Callable[[Line, FromGateway], Awaitable[None]]) -> None:
        self.url = url
        self.goodbye = ""  # the reason of the gateway's bye
        self.final = False  # whether it said not to come back
        self.reading: asyncio.Task[None] | None = None  # done when the line has ended
        self._carrier = carrier
        self._receive = receive
        self._unanswered: dict[int, asyncio.Future[Done]] = {}

    async def open(self, login: Login) -> Welcome:
        """Log in. AuthenticationFailed: our token is not good. ConnectFailed: not now, or nobody said anything."""
        try:
            async with asyncio.timeout(WELCOME_S):
                await self._carrier.open(login)
                answer = await self._carrier.receive()
        except TimeoutError:
            await self.close()
            raise ConnectFailed(f"{self.url}: no welcome within {WELCOME_S:g} s") from None
        except BaseException:
            await self.close()
            raise
        if isinstance(answer, Welcome):
            return answer
        await self.close()
        if isinstance(answer, RefusedFrame) and answer.final:
            raise AuthenticationFailed(f"{self.url}: {answer.problem}")
        raise ConnectFailed(f"{self.url}: {answer}")

    def start(self) -> asyncio.Task[None]:
        """Begin to read."""
        self.reading = asyncio.create_task(self._read())
        return self.reading

    async def ask(self, operation: Operation) -> Done:
        """The answer to an operation. ConnectFailed: the line ended before it came."""
        if self.reading is None or self.reading.done():
            raise ConnectFailed(f"{self.url}: the line has ended")
        future: asyncio.Future[Done] = asyncio.get_running_loop().create_future()
        self._unanswered[operation.ref] = future
        try:
            await self._carrier.send(operation)
            return await future
        finally:
            self._unanswered.pop(operation.ref, None)

    async def acknowledge(self, subscription: str, execution: int) -> None:
        await self._carrier.send(Ack(subscription, execution))

    async def answered(self) -> bool:
        """Whether all operations have their answers; waits for them a while."""
        if not self._unanswered:
            return True
        _, pending = await asyncio.wait(list(self._unanswered.values()), timeout=LEAVE_S)
        return not pending

    async def leave(self) -> bool:
        """Log out. Whether everything that was on its way has come."""
        await self.answered()
        with contextlib.suppress(ConnectFailed):
            await self._carrier.send(Logout())
            if self.reading is not None:
                await asyncio.wait([self.reading], timeout=LEAVE_S)
        await self.close()
        return self.goodbye == LOGGED_OUT

    async def close(self) -> None:
        if self.reading is not None:
            self.reading.cancel()
        await self._carrier.close()

    async def _read(self) -> None:
        try:
            while not self.goodbye:
                await self._handle(await self._carrier.receive())
        except (ConnectFailed, ProtocolError, AuthenticationFailed) as error:
            self.goodbye = str(error)
        except Exception as error:
            log.exception("a line to %s failed", self.url)
            self.goodbye = f"an unexpected error: {error!r}"
        finally:
            for future in self._unanswered.values():
                if not future.done():
                    future.set_exception(ConnectFailed(f"{self.url}: {self.goodbye or 'closed'}"))

    async def _handle(self, frame: FromGateway) -> None:
        if isinstance(frame, Bye):
            self.goodbye, self.final = frame.reason, frame.final
        elif isinstance(frame, (Done, RefusedFrame)) and frame.ref is not None:
            future = self._unanswered.get(frame.ref)
            if future is not None and not future.done():
                if isinstance(frame, Done):
                    future.set_result(frame)
                else:
                    future.set_exception(Refused(frame.problem))
        else:
            await self._receive(self, frame)
