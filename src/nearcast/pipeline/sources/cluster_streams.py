"""The streams of all brokers of a cluster: `nc:reports` on the server of broker b1 is called `b1/nc:reports`.

It answers the same questions as `StreamServer`, each from the server that has the stream. A server that does not answer
has no streams for now; what it has is read when it answers again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from nearcast.errors import ClusterError
from nearcast.pipeline.sources.offsets import View
from nearcast.pipeline.sources.parts import journalled_membership
from nearcast.pipeline.sources.server import Record, RespConnection, StreamServer
from nearcast.runtime.driver import parse_url

log = logging.getLogger(__name__)


class ClusterStreams:
    """Connections to all brokers of the cluster whose store is at this URL. Use it in a `with` block."""

    def __init__(self, store_url: str) -> None:
        self._url = store_url
        self._stack = ExitStack()
        self._servers: dict[str, StreamServer] = {}

    def __enter__(self) -> Self:
        with RespConnection(self._url) as store:
            membership = journalled_membership(store)
        _, credentials = parse_url(self._url)
        for name, info in membership.brokers.items() if membership is not None else ():
            try:
                connection = self._stack.enter_context(RespConnection(info.url, credentials))
            except ClusterError as error:
                log.debug("the streams of %s are not read for now: %s", name, error)
                continue
            self._servers[name] = StreamServer(connection)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def names(self, wanted: Sequence[str]) -> list[str]:
        """The wanted streams of all brokers, sorted; see `StreamServer.names`."""
        return sorted(f"{broker}/{name}" for broker, server in self._servers.items() for name in server.names(wanted))

    def views(self, streams: Sequence[str]) -> dict[str, View | None]:
        """How far each stream goes; None for one that does not exist, or whose server does not answer."""
        found: dict[str, View | None] = dict.fromkeys(streams)
        for broker, server in self._servers.items():
            here = [stream for stream in streams if stream.startswith(f"{broker}/")]
            views = server.views([stream.partition("/")[2] for stream in here])
            found |= {stream: views[stream.partition("/")[2]] for stream in here}
        return found

    def step(self, stream: str, after: str, records: int) -> tuple[str, int]:
        return self._server_of(stream).step(stream.partition("/")[2], after, records)

    def pages(self, stream: str, after: str, upto: str) -> Iterator[list[Record]]:
        return self._server_of(stream).pages(stream.partition("/")[2], after, upto)

    def _server_of(self, stream: str) -> StreamServer:
        broker = stream.partition("/")[0]
        if broker not in self._servers:
            raise ClusterError(f"the server of {broker}, which has {stream}, does not answer: check that it runs")
        return self._servers[broker]
