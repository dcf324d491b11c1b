"""The collector: the part of an agent that puts messages of feeds into streams, for Spark to read.

It follows the list of feeds on the store's server. Every agent has one and is a candidate for every feed; which of
them collects, and which stands by, is settled for each feed by a lease (feed_collector.py).
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time

import msgspec

from nearcast.core.store_names import FEEDS
from nearcast.errors import ClusterError, NearcastError
from nearcast.runtime.client import Client
from nearcast.runtime.feed_collector import FeedCollector
from nearcast.runtime.requester import Requester
from nearcast.runtime.troubles import Troubles

LOOK_S = 1.0  # between two looks at the list of feeds
UNLISTED_S = 5.0  # a server that lost its memory is told its feeds again within this; then a feed was dropped

log = logging.getLogger(__name__)


class _Listed(msgspec.Struct, frozen=True):
    topic: str
    stream: str


class Collector:
    """For all feeds. It opens a client of the cluster only if there are feeds."""

    def __init__(self, broker: str, server_url: str, store_url: str) -> None:
        self._agent = f"{broker}:{secrets.token_hex(4)}"  # a process that was killed must not be taken for this one
        self._server_url = server_url
        self._store = Requester(store_url)
        self._feeds: dict[str, FeedCollector] = {}
        self._listed_s: dict[str, float] = {}  # when a feed was last seen in the list
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._problem = ""
        self._troubles = Troubles(log)

    @property
    def problem(self) -> str:
        """What keeps feeds from being collected here, in words; empty if nothing does."""
        return self._problem or self._troubles.problem

    async def serve(self) -> None:
        """Runs until cancelled; then what was received is appended, and other agents take over."""
        try:
            await self._follow()
        finally:
            await asyncio.gather(*(feed.close() for feed in self._feeds.values()))
            if self._client is not None:
                await self._client.close()
            await self._store.close()

    async def _follow(self) -> None:
        while True:
            try:
                await self._look()
                self._said("")
            except (NearcastError, TimeoutError) as error:
                self._said(str(error) or "the store does not answer")
            except Exception as error:  # the agent has more to do than this
                self._troubles.note("looking for feeds", error)
            await asyncio.sleep(LOOK_S)

    def _said(self, problem: str) -> None:
        """Loudly, once: without the list of feeds this agent collects nothing."""
        if problem and problem != self._problem:
            log.error("feeds are not collected here: the list of feeds (%s) cannot be read: %s", FEEDS, problem)
        self._problem = problem

    async def _look(self) -> None:
        reply = await self._store.ask("HGETALL", FEEDS)
        if isinstance(reply, Exception):
            raise ClusterError(f"the store refused: {reply}")
        listed = _listed(reply)
        now_s = time.monotonic()
        self._listed_s |= dict.fromkeys(listed, now_s)
        for name, collecting in list(self._feeds.items()):
            changed = name in listed and listed[name].topic != collecting.topic
            if changed or now_s - self._listed_s[name] > UNLISTED_S:
                del self._feeds[name], self._listed_s[name]
                await collecting.close()
        for name, feed in listed.items():
            if name not in self._feeds:
                self._listed_s[name] = now_s
                self._feeds[name] = FeedCollector(
                    name, feed.topic, self._agent, self._store, self._connect, self._troubles
                )

    async def _connect(self) -> Client:
        """One client for all feeds."""
        async with self._connecting:
            if self._client is None:
                self._client = await Client(self._server_url)
            return self._client


def _listed(reply: object) -> dict[str, _Listed]:
    """The feeds by name; one that cannot be read is left out, and said."""
    pairs = reply.items() if isinstance(reply, dict) else zip(*[iter(reply)] * 2, strict=True)  # type: ignore[call-overload]
    found = {}
    for name, value in pairs:
        try:
            found[name.decode()] = msgspec.json.decode(value, type=_Listed)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("feed %r cannot be read: %s", name, error)
    return found
