"""The collector: the part of an agent that puts messages of feeds into streams, for Spark to read.

`Collector` follows the list of feeds on the store's server. Every agent has one and is a candidate for every feed.

`FeedCollector` is one agent's part in collecting one feed: it collects, stands by, or waits for its turn, which a lease
decides. One agent holds the feed's lease and appends the messages of its topics to the stream. Another stands by: it is
subscribed as well, and keeps what the first may not have appended yet, so that it loses nothing when it takes over. The
script that appends skips what is in the stream and refuses an agent that lost its lease.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

import msgspec

from nearcast.agent.feed_buffer import APPEND, CLAIM, COLLECT, GONE, IDLE, NOT_OURS, RELEASE, STANDBY, FeedBuffer
from nearcast.core.model.names import FEEDS, FeedKeys, feed_keys
from nearcast.core.wire.link import Reply
from nearcast.errors import ClusterError, NearcastError
from nearcast.runtime.client import Client
from nearcast.runtime.requester import Requester
from nearcast.runtime.subscription import Subscription
from nearcast.runtime.workers import Troubles

# --- one feed


LEASE_S = 3.0
CLAIM_S = 0.5  # between two renewals: several fit into a lease
ATTACH_S = 10.0  # after that another agent may try
FLUSH_S = 0.02  # between two appends: short beside a feed's batches, long enough to gather messages
CHUNK_EVENTS = 500  # in one script call, which stops the server for some milliseconds
CHUNK_BYTES = 1 << 20
KEEP_S = 5.0  # a standby keeps messages this long after they should be in the stream: the two may get them late
DOUBT_S = 1.0  # a message may reach two agents this far apart in time
STREAM_RECORDS_MAX = 500_000  # then the oldest are dropped, and the feed reports the loss
STREAM_BYTES_MAX = 512 << 20  # the same
QUIET_S = 600.0  # a publisher that is silent for this long may be forgotten

log = logging.getLogger(__name__)

Connect = Callable[[], Awaitable[Client]]


class FeedCollector:
    """Runs until closed. `agent` must name this process and no other, not even an earlier one of the same broker."""

    def __init__(
        self, feed: str, topic: str, agent: str, store: Requester, connect: Connect, troubles: Troubles
    ) -> None:
        self.topic = topic
        self._feed = feed
        self._agent = agent
        self._store = store
        self._connect = connect
        self._keys: FeedKeys = feed_keys(feed)
        self._buffer = FeedBuffer()
        self._collecting = False
        self._subscription: Subscription | None = None
        self._attaching: asyncio.Task[None] | None = None
        self._attached_ms = 0.0  # by the server's clock; 0: not yet
        self._clock_ms = 0.0  # the server's clock minus ours, which is monotonic
        self._whole_ms = 0.0  # everything received until then is in the stream, by the server's clock; 0: unknown
        self._told_ms = 0  # the last such time that we told the server
        self._next_claim_s = 0.0
        self._problem = ""
        self._troubles = troubles
        self._task = asyncio.create_task(self._run(), name=f"feed-{feed}")

    async def close(self) -> None:
        """Append what is there, and leave the feed to the others."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        with suppress(NearcastError, TimeoutError):
            if self._collecting:
                self._take(0.0)
                await self._append()
            await self._release()
        self._detach()

    async def _run(self) -> None:
        while True:
            try:
                await self._turn()
                self._note("")
            except (NearcastError, TimeoutError) as error:
                self._note(str(error))
                await asyncio.sleep(CLAIM_S)
            except Exception as error:  # the others take over meanwhile
                self._troubles.note("collecting a feed", error)
                await asyncio.sleep(CLAIM_S)
            await asyncio.sleep(FLUSH_S if self._collecting else CLAIM_S / 2)

    def _note(self, problem: str) -> None:
        if problem and problem != self._problem:
            log.error("feed %s is not collected by this agent: %s", self._feed, problem)
        self._problem = problem

    async def _turn(self) -> None:
        taken_ms = time.monotonic() * 1000 + self._clock_ms
        if self._attached_ms:
            self._take(taken_ms)
        if self._collecting:
            await self._append()
        if self._collecting and not self._buffer:
            self._whole_ms = taken_ms
        if time.monotonic() >= self._next_claim_s:
            await self._claim()

    # --- roles

    async def _claim(self) -> None:
        keys, whole_ms = self._keys, int(self._whole_ms)
        role, now_ms, until_ms = _three(
            await self._ask(
                CLAIM,
                [FEEDS, keys.lease, keys.standby, keys.state],
                self._feed,
                self._agent,
                _ms(LEASE_S),
                int(self._whole_ms),
            )
        )
        self._next_claim_s = time.monotonic() + CLAIM_S
        self._clock_ms = now_ms - time.monotonic() * 1000
        self._collecting = self._collecting and role == COLLECT
        if self._collecting and whole_ms:
            self._told_ms = whole_ms
        if role == IDLE:
            self._detach()
        if role in (GONE, IDLE):  # gone: dropped, or the server lost its memory; our `Collector` will find out
            return
        await self._attach(now_ms)
        if role == STANDBY:
            self._buffer.forget(until_ms - KEEP_S * 1000)
        elif self._attached_ms and not self._collecting:
            self._collecting, self._whole_ms = True, 0.0
            self._promoted(until_ms)

    async def _attach(self, now_ms: float) -> None:
        """Begin to subscribe, or check whether that is done. If we cannot subscribe, another agent takes the feed."""
        if self._attaching is None:
            self._attaching = asyncio.create_task(self._subscribe())
        elif self._attaching.done() and not self._attached_ms:
            error = self._attaching.exception()
            if error is None:
                self._attached_ms = now_ms
                return
            self._detach()
            await self._release()
            self._next_claim_s = time.monotonic() + LEASE_S
            raise ClusterError(f"cannot subscribe to {self.topic}: {error or 'timed out'}")

    async def _subscribe(self) -> None:
        async with asyncio.timeout(ATTACH_S):
            client = await self._connect()
            pattern = any(sign in self.topic for sign in "*?[")
            self._subscription = (client.psubscribe if pattern else client.subscribe)(self.topic)
            await self._subscription

    async def _release(self) -> None:
        await self._ask(RELEASE, [self._keys.lease, self._keys.standby], self._agent)

    def _promoted(self, until_ms: float) -> None:
        """We collect from now on. If no agent did for a while, report that first."""
        begins_ms, ended_ms = self._buffer.dropped_ms, until_ms - DOUBT_S * 1000
        if until_ms != self._told_ms:  # else we were the last to collect, and have kept everything since
            begins_ms = max(begins_ms, self._attached_ms)
        if until_ms and begins_ms > ended_ms:
            extent = f"from {ended_ms / 1000:.3f} to {begins_ms / 1000:.3f}"
            self._buffer.interrupted(self.topic, f"messages may be missing {extent}: no agent collected them")
        log.info("feed %s: this agent collects %s", self._feed, self.topic)

    def _detach(self) -> None:
        if self._attaching is not None:
            self._attaching.cancel()
        if self._subscription is not None:
            self._subscription.close()
        self._attaching = self._subscription = None
        self._attached_ms = 0.0
        self._collecting = False
        self._whole_ms, self._told_ms = 0.0, 0
        self._buffer = FeedBuffer()

    # --- messages

    def _take(self, now_ms: float) -> None:
        """Take what came, unless we collect and do not keep up: then the mailbox drops the oldest, and reports it."""
        if self._subscription is not None and not (self._collecting and self._buffer.full):
            self._buffer.add(self._subscription.take(), now_ms)

    async def _append(self) -> None:
        keys = self._keys
        limits = (_ms(LEASE_S), STREAM_RECORDS_MAX, STREAM_BYTES_MAX, _ms(QUIET_S))
        while chunk := self._buffer.first(CHUNK_EVENTS, CHUNK_BYTES):
            entries = [part for entry in chunk for part in entry]
            added = await self._ask(
                APPEND,
                [FEEDS, keys.lease, keys.state, keys.stream, keys.lines, keys.older_lines],
                *(self._feed, self._agent, *limits, *entries),
            )
            if added == NOT_OURS:
                self._collecting, self._next_claim_s = False, 0.0
                return
            self._buffer.remove(len(chunk))

    async def _ask(self, script: bytes, keys: list[str], *arguments: bytes | str | int) -> Reply:
        reply = await self._store.ask("EVAL", script, len(keys), *keys, *arguments)
        if isinstance(reply, Exception):
            raise ClusterError(f"the store refused: {reply}")
        return reply


def _three(reply: Reply) -> tuple[int, int, int]:
    assert isinstance(reply, list)
    role, now_ms, until_ms = reply
    return int(role), int(now_ms), int(until_ms)


def _ms(seconds: float) -> int:
    return int(seconds * 1000)


LOOK_S = 1.0  # between two reads of the list of feeds
UNLISTED_S = 5.0  # a server that lost its memory has its feeds again by then; a feed still missing was dropped


class _Listed(msgspec.Struct, frozen=True):
    topic: str
    stream: str


# --- all feeds


class Collector:
    """For all feeds. It opens a client of the cluster only if there are feeds."""

    def __init__(self, broker: str, server_url: str, store_url: str) -> None:
        self._agent = f"{broker}:{secrets.token_hex(4)}"  # so that a killed predecessor is not taken for this one
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
                self._note("")
            except (NearcastError, TimeoutError) as error:
                self._note(str(error) or "the store does not answer")
            except Exception as error:  # the agent has more to do than this
                self._troubles.note("looking for feeds", error)
            await asyncio.sleep(LOOK_S)

    def _note(self, problem: str) -> None:
        """Log it loudly, once: without the list of feeds this agent collects nothing."""
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
    """The feeds by name; one that cannot be read is left out, and logged."""
    pairs = reply.items() if isinstance(reply, dict) else zip(*[iter(reply)] * 2, strict=True)  # type: ignore[call-overload]
    found = {}
    for name, value in pairs:
        try:
            found[name.decode()] = msgspec.json.decode(value, type=_Listed)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.warning("feed %r cannot be read: %s", name, error)
    return found
