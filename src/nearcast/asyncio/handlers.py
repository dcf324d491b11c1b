"""Handlers: who takes the messages of a channel or pattern."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from nearcast.asyncio.encoder import Decoded, Encodable

Handler = Callable[[dict[str, Any]], Awaitable[None] | None]
Handlers = dict[Decoded, Handler | None]


class Subscription(msgspec.Struct, frozen=True):
    """A channel or pattern with its handler, to be given to subscribe or psubscribe."""

    name: Encodable
    handler: Handler | None = None


class Table:
    """The channels (or the patterns) of a PubSub, each with its handler.

    As in redis-py a name stays until the confirmation of its end is read, so that messages before that find their
    handler, and `listen` goes on until then.
    """

    def __init__(self) -> None:
        self.handlers: Handlers = {}
        self._leaving: set[Decoded] = set()

    @contextmanager
    def entering(self, new: Handlers) -> Iterator[None]:
        """Add names, or change their handlers; if what follows fails, it was never done."""
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
        """The end of a name was read: forget it, unless it was subscribed again meanwhile."""
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
    """redis-py lets the first argument be a list of names."""
    if args and isinstance(args[0], (list, tuple, set, frozenset)):
        return [*args[0], *args[1:]]
    return list(args)


async def settled(result: Awaitable[None] | None) -> None:
    if inspect.isawaitable(result):
        await result
