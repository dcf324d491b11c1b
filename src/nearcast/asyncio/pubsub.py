"""PubSub, as in redis.asyncio: subscribe, then get_message, listen or run.

A PubSub is one client of the cluster, as it is one connection in redis-py, so the numbers that `publish` and
`pubsub_numsub` return mean the same. With `Redis(share_connections=True)` all PubSubs of a Redis object are one client.
Unlike in redis-py, a lost connection is not an error: the client attaches again and asks the publishers to repeat what
was missed. What cannot be repeated is counted in `gaps` and `interruptions`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import msgspec

from nearcast.asyncio.connection import ConnectionPool
from nearcast.asyncio.intake import Confirmation, Intake, Key, Pong
from nearcast.asyncio.options import Decoded, Encodable, PubSubError, raises_as_redis_py
from nearcast.core.model.message import Gap, Interrupted, Message
from nearcast.core.model.names import encode_topic
from nearcast.errors import UsageError
from nearcast.runtime.client import Client

# --- handlers


Handler = Callable[[dict[str, Any]], Awaitable[None] | None]
Handlers = dict[Decoded, Handler | None]


class Subscription(msgspec.Struct, frozen=True):
    """A channel or pattern with its handler, for subscribe or psubscribe."""

    name: Encodable
    handler: Handler | None = None


class Table:
    """The channels (or the patterns) of a PubSub, each with its handler.

    As in redis-py, a name stays until the program has read the confirmation of its unsubscription. So messages before
    that find their handler, and `listen` continues until then.
    """

    def __init__(self) -> None:
        self.handlers: Handlers = {}
        self._leaving: set[Decoded] = set()

    @contextmanager
    def entering(self, new: Handlers) -> Iterator[None]:
        """Add names, or change their handlers; undone if the block fails."""
        before = {name: self.handlers[name] for name in new if name in self.handlers}
        leaving = self._leaving & new.keys()
        self.handlers.update(new)
        self._leaving -= leaving
        try:
            yield
        except BaseException:
            self._leaving |= leaving
            for name in new:
                self.handlers.pop(name, None)
            self.handlers.update(before)
            raise

    def leave(self, names: Iterable[Decoded]) -> None:
        self._leaving.update(names)

    def left(self, name: Decoded | None) -> None:
        """The program has read the end of a name: forget it, unless it was subscribed again meanwhile."""
        if name in self._leaving:
            self._leaving.discard(name)
            self.handlers.pop(name, None)


def with_handlers(args: tuple[Any, ...], kwargs: dict[str, Handler]) -> dict[Encodable, Handler | None]:
    handlers: dict[Encodable, Handler | None] = {}
    for arg in flat(args):
        if isinstance(arg, Subscription):
            handlers[arg.name] = arg.handler
        else:
            handlers[arg] = None
    handlers.update(kwargs)
    return handlers


def flat(args: tuple[Any, ...]) -> list[Any]:
    """The arguments, of which the first may be a list of names, as in redis-py."""
    if args and isinstance(args[0], (list, tuple, set, frozenset)):
        return [*args[0], *args[1:]]
    return list(args)


async def settled(result: Awaitable[None] | None) -> None:
    if inspect.isawaitable(result):
        await result


# --- the PubSub


log = logging.getLogger("nearcast.asyncio")

MANY = 100  # an idle PubSub with its own connections to three brokers costs 0.5 to 1 ms of CPU per second

OnEvent = Callable[[Gap | Interrupted], Awaitable[None] | None]
OnError = Callable[[BaseException, "PubSub"], Awaitable[None] | None]
Response = list[Decoded | int | None]  # as servers send it: the kind, then pattern, channel and data if it has them


class PubSub:
    """Subscribes, and reads messages. Make it with `Redis.pubsub()`."""

    def __init__(
        self,
        connection_pool: ConnectionPool,
        *,
        share_connections: bool = False,
        ignore_subscribe_messages: bool = False,
        on_event: OnEvent | None = None,
    ) -> None:
        self.ignore_subscribe_messages = ignore_subscribe_messages
        self.connection: Client | None = None
        self.gaps = 0  # runs of messages that were lost, each of known length
        self.interruptions = 0  # periods in which an unknown number of messages may have been lost
        self.connection_pool = connection_pool
        self._options = connection_pool.options
        self._encoder = self._options.encoder
        self._share = share_connections
        self._on_event = on_event
        self._intake: Intake | None = None
        self._channels = Table()
        self._patterns = Table()
        self._opening = asyncio.Lock()

    # --- life

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    @property
    def channels(self) -> Handlers:
        return self._channels.handlers

    @property
    def patterns(self) -> Handlers:
        return self._patterns.handlers

    @property
    def subscribed(self) -> bool:
        """Whether there are subscriptions whose end the program has not read yet."""
        return bool(self.channels or self.patterns)

    @raises_as_redis_py
    async def connect(self) -> None:
        """Connect to the cluster. The other calls do this when needed."""
        await self._connected()

    async def _connected(self) -> Intake:
        async with self._opening:
            if self._intake is None:
                self.connection = await (self.connection_pool.client() if self._share else self._options.client())
                self._intake = Intake(self.connection, self._options.limits)
                self.connection_pool.pubsubs.add(self)
                self._warn_of_many()
            return self._intake

    def _warn_of_many(self) -> None:
        if len(self.connection_pool.pubsubs) == MANY and not self._share:
            log.warning("%d PubSubs have their own connections: consider Redis(share_connections=True)", MANY)

    async def aclose(self) -> None:
        """Leave everything; what was not read is discarded. The object can be used again."""
        async with self._opening:
            client, intake, self.connection, self._intake = self.connection, self._intake, None, None
            self._channels, self._patterns = Table(), Table()
            self.connection_pool.pubsubs.discard(self)
            if intake is not None:
                intake.close()
            if client is not None and not self._share:
                await client.close()

    close = reset = aclose

    # --- commands

    @raises_as_redis_py
    async def subscribe(self, *args: Encodable | Subscription | Iterable[Any], **kwargs: Handler) -> None:
        """Subscribe to channels; a keyword is a channel with its handler. Nothing published after this is missed."""
        await self._subscribe(with_handlers(args, kwargs), self._channels, pattern=False)

    @raises_as_redis_py
    async def psubscribe(self, *args: Encodable | Subscription | Iterable[Any], **kwargs: Handler) -> None:
        """Subscribe to patterns, on all brokers; a keyword is a pattern with its handler."""
        await self._subscribe(with_handlers(args, kwargs), self._patterns, pattern=True)

    @raises_as_redis_py
    async def unsubscribe(self, *args: Encodable | Iterable[Any]) -> None:
        """Leave these channels, or all. The confirmation is read after the last message."""
        await self._unsubscribe(flat(args), self._channels, pattern=False)

    @raises_as_redis_py
    async def punsubscribe(self, *args: Encodable | Iterable[Any]) -> None:
        """Leave these patterns, or all."""
        await self._unsubscribe(flat(args), self._patterns, pattern=True)

    @raises_as_redis_py
    async def ping(self, message: Encodable | None = None) -> None:
        """Wait for an answer of the cluster, and put a `pong` after the messages that came before it."""
        data = b"" if message is None else self._encoder.encode(message)
        intake = await self._connected()
        await intake.ping(data, self._options.call_timeout_s)

    async def _subscribe(self, handlers: dict[Encodable, Handler | None], table: Table, *, pattern: bool) -> None:
        if not handlers:
            raise UsageError("name at least one channel or pattern to subscribe to")
        keys = self._keys(handlers, pattern=pattern)
        intake = await self._connected()
        normal = {self._encoder.normal(name): handler for name, handler in handlers.items()}
        with table.entering(normal):
            await intake.subscribe(keys, self._options.call_timeout_s)

    async def _unsubscribe(self, names: list[Encodable], table: Table, *, pattern: bool) -> None:
        keys = self._keys(names, pattern=pattern)
        intake = await self._connected()
        table.leave(map(self._encoder.normal, names) if names else table.handlers)
        await intake.unsubscribe(keys, self._options.call_timeout_s, pattern=pattern)

    def _keys(self, names: Iterable[Encodable], *, pattern: bool) -> list[Key]:
        return list(dict.fromkeys(Key(encode_topic(self._encoder.encode(name)), pattern) for name in names))

    # --- reading

    async def get_message(
        self, ignore_subscribe_messages: bool = False, timeout: float | None = 0.0
    ) -> dict[str, Any] | None:
        """The next message; None if none came in `timeout` seconds (None: no limit), or if a handler took it."""
        response = await self.parse_response(block=timeout is None, timeout=timeout)
        if response is None:
            return None
        return await self.handle_message(response, ignore_subscribe_messages)

    async def listen(self) -> AsyncIterator[dict[str, Any]]:
        """Messages, until everything is unsubscribed."""
        while self.subscribed:
            message = await self.get_message(timeout=None)
            if message is not None:
                yield message

    async def run(
        self, *, exception_handler: OnError | None = None, poll_timeout: float = 1.0, pubsub: PubSub | None = None
    ) -> None:
        """Pass messages to their handlers until cancelled; every channel and pattern must have one."""
        for name, handler in [*self.channels.items(), *self.patterns.items()]:
            if handler is None:
                raise PubSubError(f"{name!r} has no handler: subscribe with a keyword, name=handler")
        await self.connect()
        while True:
            try:
                await (pubsub or self).get_message(ignore_subscribe_messages=True, timeout=poll_timeout)
            except asyncio.CancelledError:
                raise
            except BaseException as error:
                if exception_handler is None:
                    raise
                await settled(exception_handler(error, self))
            await asyncio.sleep(0)  # handlers that never wait must not keep others from running

    async def handle_message(
        self, response: Response, ignore_subscribe_messages: bool = False
    ) -> dict[str, Any] | None:
        """Pass what `parse_response` returned to its handler and return None, or return it as a dictionary."""
        message = _as_message(response)
        kind, channel = message["type"], message["channel"]
        if kind in ("message", "pmessage"):
            handler = self.patterns.get(message["pattern"]) if kind == "pmessage" else self.channels.get(channel)
            if handler is None:
                return message
            await settled(handler(message))
            return None
        if kind in ("unsubscribe", "punsubscribe"):
            (self._patterns if kind == "punsubscribe" else self._channels).left(channel)
        if kind != "pong" and (ignore_subscribe_messages or self.ignore_subscribe_messages):
            return None
        return message

    @raises_as_redis_py
    async def parse_response(self, block: bool = True, timeout: float | None = 0.0) -> Response | None:
        """The next message as a server sends it, or None if none came; with `block`, `timeout` is ignored."""
        intake = self._intake
        if intake is None:
            raise PubSubError("this PubSub is not connected: did you forget to call subscribe() or psubscribe()?")
        clock = asyncio.get_running_loop().time
        until_s = None if block or timeout is None else clock() + timeout
        while True:
            item = await intake.get(None if until_s is None else until_s - clock())
            if not isinstance(item, (Gap, Interrupted)):
                return None if item is None else self._as_response(item)
            await self._count(item)

    async def _count(self, event: Gap | Interrupted) -> None:
        """redis-py has no events for lost messages: count them, and call `on_event` if it was given."""
        if isinstance(event, Gap):
            self.gaps += 1
        elif event.until_s is None:
            self.interruptions += 1
        if self._on_event is not None:
            await settled(self._on_event(event))

    def _as_response(self, item: Message | Confirmation | Pong) -> Response:
        decode = self._encoder.decode
        if isinstance(item, Message):
            channel = decode(item.topic.encode("utf-8", "surrogateescape"))
            if item.pattern is None:
                return [decode(b"message"), channel, decode(item.payload)]
            return [decode(b"pmessage"), decode(item.pattern.encode()), channel, decode(item.payload)]
        if isinstance(item, Pong):
            return [decode(b"pong"), decode(item.data)]
        return [decode(item.kind.encode()), None if item.name is None else decode(item.name), item.held]


def _as_message(response: Response) -> dict[str, Any]:
    first, *rest = response
    kind = first.decode() if isinstance(first, bytes) else first
    if kind == "pong":
        rest = [None, None, *rest]
    elif kind != "pmessage":
        rest = [None, *rest]
    return dict(zip(("type", "pattern", "channel", "data"), (kind, *rest), strict=True))
