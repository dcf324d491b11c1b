"""An inquiry: ask the leading controller over the bus, again and again until it answers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from nearcast.core import bus
from nearcast.core.store_names import ANSWER_CHANNEL, CONTROLLER_CHANNEL
from nearcast.errors import Unavailable
from nearcast.runtime.requester import Requester

ANSWER_S = 0.5  # a question is asked again after so long: the leader may have changed


class _Numbered(Protocol):
    @property
    def request(self) -> str: ...


Answer = TypeVar("Answer", bound=_Numbered)
Question = bus.Request | bus.RegisterUser | bus.RequestBroker


class Inquiry(Generic[Answer]):
    """Questions of one kind of answer, on one connection to the store's server. Any number may be open at a time."""

    def __init__(self, requester: Requester, decode: Callable[[bytes], Answer | None]) -> None:
        self._requester = requester
        self._decode = decode
        self._name = secrets.token_hex(8)
        self._asked = 0
        self._answers: dict[str, asyncio.Future[Answer]] = {}

    async def open(self) -> None:
        await self._requester.listen(ANSWER_CHANNEL + self._name.encode(), self._heard)

    async def ask(self, make: Callable[[str], Question], timeout_s: float) -> Answer:
        """`make` gets the number of the request."""
        self._asked += 1
        request = f"{self._name}.{self._asked}"
        answer = self._answers[request] = asyncio.get_running_loop().create_future()
        question = bus.encode(make(request))
        try:
            async with asyncio.timeout(timeout_s):
                while not answer.done():
                    await self._requester.ask("PUBLISH", CONTROLLER_CHANNEL, question)
                    await asyncio.wait([answer], timeout=ANSWER_S)
                return answer.result()
        except TimeoutError:
            pass
        finally:
            del self._answers[request]
        raise Unavailable(f"no controller answered within {timeout_s:.0f} s: start `nearcast controller`")

    def _heard(self, payload: bytes) -> None:
        heard = self._decode(payload)
        answer = self._answers.get(heard.request) if heard is not None else None
        if heard is not None and answer is not None and not answer.done():
            answer.set_result(heard)
