"""Where the data cluster is: a key on the store's server, renewed while the process lives; gateways read it there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging

from nearcast.core.store_names import DATA_KEY
from nearcast.errors import ClusterError
from nearcast.pipeline.sources.resp import RespConnection
from nearcast.runtime.troubles import Troubles

RENEW_S = 2.0
LIFETIME_S = 10.0  # of the key: a process that was killed is forgotten then

log = logging.getLogger("nearcast.data")


class Announcement:
    """Says the URL again and again; the store's server may be down for a while, or have lost its memory."""

    def __init__(self, store_url: str, url: str, troubles: Troubles | None = None) -> None:
        self._store_url = store_url
        self._troubles = troubles or Troubles(log)
        self._said = json.dumps({"url": url})

    async def keep(self) -> None:
        """Until cancelled; then the key is taken back."""
        try:
            while True:
                await asyncio.to_thread(self._say)
                await asyncio.sleep(RENEW_S)
        finally:
            with contextlib.suppress(ClusterError):
                await asyncio.to_thread(self._take_back)

    def _say(self) -> None:
        try:
            with RespConnection(self._store_url) as connection:
                connection.ask("SET", DATA_KEY, self._said, "PX", int(LIFETIME_S * 1000))
        except ClusterError as error:
            log.warning("gateways cannot be told where the data cluster is: %s", error)
        except Exception as error:
            self._troubles.note("telling gateways where the data cluster is", error)

    def _take_back(self) -> None:
        with RespConnection(self._store_url) as connection:
            if connection.ask("GET", DATA_KEY) == self._said.encode():
                connection.ask("DEL", DATA_KEY)
