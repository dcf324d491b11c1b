"""The cluster's logs, as feeds need them: which there are, how far they go, and new ones.

The data cluster is a client of the cluster in this: the controllers decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from nearcast.core.model.cursors import Cursor, Position, encode_state
from nearcast.core.model.globs import includes
from nearcast.core.model.logs import Log, cursors_of, parse_id, stream_of
from nearcast.core.model.membership import Membership
from nearcast.errors import ClusterError, Refused, UsageError
from nearcast.pipeline.catalog.feeds import ReadEntry
from nearcast.pipeline.sources.parts import extents, journalled_membership, log_of, parts_of
from nearcast.pipeline.sources.positions import LOST
from nearcast.pipeline.sources.server import Command, RespConnection
from nearcast.runtime.console import Console
from nearcast.runtime.driver import parse_url

T = TypeVar("T")


GROUP = "feeds"  # the name under which brokers know that feeds read their logs
_FIELD = f"g:{GROUP}"


def _place(entry: ReadEntry) -> Position:
    return Position(parse_id(entry.entry), 0, entry.position)


class ClusterLogs:
    """The logs of the cluster whose store is at this URL. Its calls block: use it where no event loop runs."""

    def __init__(self, store_url: str) -> None:
        self._url = store_url

    def all(self) -> tuple[Log, ...]:
        return self._membership().logs

    def covering(self, topic: str) -> Log | None:
        """A log that keeps all messages of a topic, or of all topics of a pattern; None if none certainly does."""
        wanted = topic.encode()
        found = (log for log in self.all() if any(includes(pattern.encode(), wanted) for pattern in log.topics))
        return next(found, None)

    def create(self, log: Log) -> Log:
        """Returns when every message whose publish begins afterwards is kept. Repeating this changes nothing."""
        return self._asked(lambda console: console.create_log(log))

    def drop(self, name: str) -> None:
        self._asked(lambda console: console.drop_log(name))

    def positions(self, log: Log) -> dict[str, int]:
        """How far the log's parts go now, by stream; raises ClusterError if a server does not answer."""
        _, credentials = parse_url(self._url)
        found = {}
        for part in parts_of(self._membership(), {log.key}).values():
            if part.url:
                with RespConnection(part.url, credentials) as server:
                    (extent,) = extents(server, [part])
                found[part.stream] = extent.last
            else:
                found[part.stream] = LOST if part.kept is None else part.kept
        return {stream: position for stream, position in found.items() if position}

    def note_read(self, entries: Mapping[str, ReadEntry]) -> None:
        """Note at the brokers how far feeds have read their parts: a broker that leaves waits until all is read."""
        cursors = {stream: Cursor(position=_place(entry)) for stream, entry in entries.items()}
        texts = {stream: b"0 - 0 " + encode_state(cursor) for stream, cursor in cursors.items()}
        self._at_brokers(lambda stream, key: ("HSET", key, _FIELD, texts[stream]) if stream in texts else None)

    def forget_reader(self, log: str) -> None:
        """No feed reads this log any more."""
        self._at_brokers(lambda stream, key: ("HDEL", key, _FIELD) if log_of(stream) == log else None)

    def _at_brokers(self, change: Callable[[str, bytes], Command | None]) -> None:
        """Change the cursors of parts, each at the server that has it: `change` gets its stream and their key."""
        membership = self._membership()
        _, credentials = parse_url(self._url)
        for name, info in membership.brokers.items():
            life = membership.life(name)
            keys = {stream_of(log, life).decode(): cursors_of(log, life) for log in membership.logs}
            changes = [command for stream, key in keys.items() if (command := change(stream, key)) is not None]
            if changes:
                with RespConnection(info.url, credentials) as server:
                    server.ask_all(changes)

    def _membership(self) -> Membership:
        with RespConnection(self._url) as store:
            membership = journalled_membership(store)
        if membership is None:
            raise ClusterError("the store has no cluster yet: start a controller and an agent")
        return membership

    def _asked(self, ask: Callable[[Console], Awaitable[T]]) -> T:
        async def asked() -> T:
            async with Console(self._url) as console:
                return await ask(console)

        try:
            return asyncio.run(asked())
        except Refused as error:
            raise UsageError(str(error)) from None
