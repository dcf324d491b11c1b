"""The people of the emergency workload: each logs in, subscribes, publishes its location, and leaves."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol, TypeVar

from nearcast.core.wire.gateway import Missed, Result
from nearcast.errors import ClusterError, Refused
from nearcast.subscriber.client import Subscriber
from nearcast.workloads.emergency.city import Message
from nearcast.workloads.emergency.scenario import Action, Interaction

Door = Callable[[str], Awaitable[str]]  # user -> the URL of the gateway to log in at
Until = Callable[[float], Awaitable[None]]  # sleep until this many seconds of the run have passed


T = TypeVar("T")

TRIES = 10
TRY_AGAIN_S = 2.0


class Listener(Protocol):
    """Is informed of what people are owed and what they get."""

    def subscribed(
        self, user: str, subscription: str, channel: str, parameters: dict[str, Any], from_execution: int
    ) -> None: ...

    def unsubscribed(self, user: str, subscription: str) -> None: ...

    def got(self, user: str, subscription: str, execution: int, rows: list[dict[str, Any]]) -> None: ...


class Person:
    """One user. It keeps its token for the next login; the gateway keeps its results while it is offline."""

    def __init__(self, user: str, door: Door, listener: Listener) -> None:
        self.user = user
        self.moves = 0
        self.reconnects = 0
        self.missed = 0  # results that were no longer stored when they were fetched
        self._door = door
        self._listener = listener
        self._subscriber: Subscriber | None = None
        self._listening: asyncio.Task[None] | None = None
        self._token = ""
        self._subscriptions: dict[tuple[str, str], str] = {}  # channel and parameters -> id
        self._publishing = False

    @property
    def broker(self) -> str:
        """The broker of its gateway; empty while it is offline."""
        return self._subscriber.broker if self._subscriber is not None else ""

    @property
    def moved(self) -> int:
        """How often it was moved so far."""
        return self.moves + (self._subscriber.moves if self._subscriber is not None else 0)

    async def live(self, events: Iterable[Interaction], until: Until) -> None:
        """Do what the scenario says, one event after the other."""
        for event in events:
            await until(event.at_s)
            await self._do(event)

    async def _do(self, event: Interaction) -> None:
        if event.action is Action.LOGIN:
            await self.come()
        elif event.action is Action.LOGOUT:
            await self.leave()
        elif event.action is Action.SUBSCRIBE:
            await self._subscribe(event.channel, event.parameters)
        else:
            await self._unsubscribe(event.channel, event.parameters)

    async def come(self) -> None:
        subscriber = Subscriber.connect(await self._door(self.user), self.user, token=self._token, tokens=None)
        await subscriber.__aenter__()
        self._token = subscriber.token
        self._subscriber = subscriber
        self._listening = asyncio.create_task(self._listen(subscriber))

    async def leave(self) -> None:
        subscriber, self._subscriber = self._subscriber, None
        if subscriber is None:
            return
        await subscriber.close()
        if self._listening is not None:
            await self._listening
        self.moves += subscriber.moves
        self.reconnects += subscriber.reconnects

    async def _subscribe(self, channel: str, parameters: dict[str, Any]) -> None:
        assert self._subscriber is not None
        subscription = await _patiently(self._subscriber.subscribe, channel, **parameters)
        self._subscriptions[channel, str(parameters)] = subscription
        begun = self._subscriber.held[subscription].from_execution
        self._listener.subscribed(self.user, subscription, channel, parameters, begun)

    async def _unsubscribe(self, channel: str, parameters: dict[str, Any]) -> None:
        if self._subscriber is None:
            return  # offline
        subscription = self._subscriptions.pop((channel, str(parameters)))
        self._listener.unsubscribed(self.user, subscription)
        await _patiently(self._subscriber.unsubscribe, subscription)

    async def _listen(self, subscriber: Subscriber) -> None:
        async for event in subscriber.events():
            if isinstance(event, Result):
                self._listener.got(self.user, event.subscription, event.execution, event.rows)
            elif isinstance(event, Missed):
                self.missed += 1

    async def tell(self, message: Message) -> bool:
        """Publish through the gateway; False if offline, or if the previous message is still in flight."""
        if self._subscriber is None or self._publishing:
            return False
        self._publishing = True
        try:
            with contextlib.suppress(ClusterError):  # an old location no longer matters
                await self._subscriber.publish(message.topic, message.payload)
        finally:
            self._publishing = False
        return True


async def _patiently(operation: Callable[..., Awaitable[T]], *arguments: Any, **named: Any) -> T:
    """Retry while the gateway asks to try again later, as it does when the data cluster is away."""
    for _ in range(TRIES - 1):
        try:
            return await operation(*arguments, **named)
        except Refused as refusal:
            if "try again" not in str(refusal):
                raise
            await asyncio.sleep(TRY_AGAIN_S)
    return await operation(*arguments, **named)
