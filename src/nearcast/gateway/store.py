"""The store's server as gateways ask it: an answer, or ClusterError."""

from __future__ import annotations

from nearcast.core.greeting import Credentials
from nearcast.core.link import Reply, is_error
from nearcast.errors import ClusterError
from nearcast.runtime.requester import Requester


class Store:
    """One connection, opened when it is needed."""

    def __init__(self, url: str, credentials: Credentials | None = None) -> None:
        """`credentials` are for a URL that carries none."""
        self._requester = Requester(url, credentials)

    async def ask(self, *parts: bytes | str | int) -> Reply:
        answer = await self._requester.ask(*parts)
        if is_error(answer):
            raise ClusterError(f"the store refused {parts[0]!s}: {answer}")
        return answer

    async def close(self) -> None:
        await self._requester.close()
