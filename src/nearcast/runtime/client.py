"""The client as a program sees it: connect, publish, subscribe."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Protocol

from nearcast.core.backend import ClientLink
from nearcast.core.client import Client as Machine
from nearcast.core.effects import Done, Failed
from nearcast.core.mailbox import Mailbox, Overflow, parse_overflow
from nearcast.core.membership import BrokerInfo
from nearcast.core.names import encode_topic
from nearcast.core.outflow import Outflow
from nearcast.core.refusals import summed_up
from nearcast.core.settings import DEFAULT_LIMITS, DEFAULT_TIMING, Limits, Timing
from nearcast.errors import AuthenticationFailed, Closed, ConnectFailed, PublishBufferFull, UsageError
from nearcast.runtime.connection import parse_url
from nearcast.runtime.driver import Driver, Resolve
from nearcast.runtime.subscription import Subscription

BOOTSTRAP_S = 10.0
WRITE_EVERY = 32  # messages of one loop turn: the server works on these while we make the next

Payload = bytes | str | bytearray | memoryview


class Consumer(Protocol):
    """Whoever reads a mailbox."""

    def close(self) -> None: ...

    def _wake(self) -> None: ...


class Client:
    """One connection to the cluster. Make it with `nearcast.connect(...)`.

    async with nearcast.connect("redis://any.server.of.the.cluster") as client:
        await client.publish("greetings", b"hello")
    """

    def __init__(
        self,
        *urls: str,
        timing: Timing = DEFAULT_TIMING,
        limits: Limits = DEFAULT_LIMITS,
        resolve: Resolve | None = None,
        bootstrap_s: float = BOOTSTRAP_S,
        patient: bool = True,
    ) -> None:
        """`patient`: servers that cannot be reached are tried again for `bootstrap_s`, else each of them once."""
        if not urls:
            raise UsageError("give the URL of at least one server of the cluster")
        parsed = [parse_url(url) for url in urls]
        self._urls = [address.url for address, _ in parsed]
        self._credentials = parsed[0][1]
        self._timing = timing
        self._limits = limits
        self._resolve = resolve
        self._bootstrap_s = bootstrap_s
        self._patient = patient
        self._machine = Machine(
            secrets.randbits(64), random.Random(), credentials=self._credentials, timing=timing, limits=limits
        )
        self._driver: Driver | None = None
        self._unwritten = 0
        self._outflows: dict[str | bytes, Outflow] = {}  # by the name the program uses
        self._subscriptions: dict[Mailbox, Consumer] = {}
        self._room: asyncio.Event | None = None
        self._blocked_until_s: float | None = None

    # --- life

    def __await__(self) -> Generator[object, None, Client]:
        return self._open().__await__()

    async def __aenter__(self) -> Client:
        return await self._open()

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @property
    def client_id(self) -> int:
        """The publisher number in messages of this client."""
        return self._machine.client_id

    @property
    def brokers(self) -> dict[str, BrokerInfo]:
        """The brokers of the cluster, as last heard."""
        return dict(self._machine.membership.brokers)

    async def sync(self) -> int:
        """Wait until the servers have done what we asked so far. Returns how many we are connected to."""
        driver = self._driver
        if driver is None:
            raise _not_open()
        links = self._machine.links
        answered: set[ClientLink] = set()
        asked = set(links.all_up())

        def ask(link: ClientLink) -> None:
            link.barrier(lambda now_s: answered.add(link))

        for link in asked:
            ask(link)
        driver.soon()
        while asked.intersection(links.all_up()) - answered:
            await self._wait_for_room()
        return len(answered)

    async def _open(self) -> Client:
        if self._driver is not None:
            self._running()
            return self
        self._loop = asyncio.get_running_loop()
        self._driver = Driver(self._machine, self._after, self._resolve)
        self._soon, self._flush = self._driver.soon, self._driver.flush
        self._new_future: Callable[[], asyncio.Future[int]] = self._loop.create_future
        self._room = asyncio.Event()
        for url in self._urls:
            self._machine.links.seed(url, self._driver.now())
        self._driver.start()
        try:
            await self._bootstrap()
        except BaseException:
            await self.close()
            raise
        return self

    async def _bootstrap(self) -> None:
        """Wait until one server has let us in, or say why none did."""
        links = self._machine.links
        with suppress(TimeoutError):
            async with asyncio.timeout(self._bootstrap_s):
                while not links.opened:
                    error = links.last_error
                    if isinstance(error, AuthenticationFailed):
                        raise error
                    if isinstance(error, ConnectFailed) and links.all_tried and not self._patient:
                        raise error
                    await asyncio.sleep(0.01)
                return
        raise links.last_error or self._no_answer()

    def _no_answer(self) -> ConnectFailed:
        tls = any(url.startswith("rediss:") for url in self._urls)
        return ConnectFailed(f"no answer from {', '.join(self._urls)}: do the servers run{' and speak TLS' * tls}?")

    async def close(self) -> None:
        """Leave the cluster. Messages not acknowledged yet fail with Closed; flush() first to wait for them."""
        driver = self._driver
        if driver is None or self._machine.closed:
            return
        for subscription in list(self._subscriptions.values()):
            subscription.close()
        self._outflows.clear()
        self._machine.close(driver.now())
        driver.settle()
        await driver.stop()

    def _running(self) -> Driver:
        if self._driver is None:
            raise _not_open()
        if self._machine.closed:
            raise Closed("this client is closed: connect a new one")
        return self._driver

    # --- publishing

    async def publish(self, topic: str | bytes, payload: Payload) -> int:
        """Send a message and wait until it is acknowledged. Returns how many connections it reached."""
        outflow = self._outflows.get(topic) or self._outflow(topic)
        data = payload if type(payload) is bytes else _payload(payload)
        future = self._new_future()
        while True:
            try:
                outflow.publish(data, time.time_ns(), future)
                break
            except PublishBufferFull:
                await self._wait_for_room()
        self._write()
        try:
            receivers: int = await future
        except asyncio.CancelledError:
            outflow.give_up(future)
            raise
        return receivers

    def publish_nowait(self, topic: str | bytes, payload: Payload) -> None:
        """Send a message without waiting; if a server refuses it, the next `flush()` says so.

        Raises PublishBufferFull at the limit: then `await drain()`.
        """
        outflow = self._outflows.get(topic) or self._outflow(topic)
        data = payload if type(payload) is bytes else _payload(payload)
        outflow.publish(data, time.time_ns(), None)
        self._write()

    def _write(self) -> None:
        """Have messages written at the end of this loop turn, or sooner if there are many."""
        self._unwritten += 1
        if self._unwritten < WRITE_EVERY:
            self._soon()
        else:
            self._unwritten = 0
            self._flush()

    def _outflow(self, topic: str | bytes) -> Outflow:
        driver = self._running()
        if len(self._outflows) >= self._limits.topics:
            self._outflows.clear()
        outflow = self._outflows[topic] = self._machine.outflow(encode_topic(topic), driver.now())
        return outflow

    async def drain(self) -> None:
        """Wait until publish_nowait has room again on every topic."""
        while not all(outflow.has_room for outflow in self._machine.outflows.values()):
            await self._wait_for_room()

    async def flush(self) -> None:
        """Wait until everything published so far is acknowledged.

        Raises ClusterError if a server has refused messages of `publish_nowait` since the last call.
        """
        goals = [(outflow, outflow.sequence) for outflow in self._machine.outflows.values()]
        while any(outflow.acknowledged < goal for outflow, goal in goals):
            await self._wait_for_room()
        refused = self._machine.refusals.take()
        if refused:
            raise summed_up(refused)

    async def _wait_for_room(self) -> None:
        if self._room is not None and not self._machine.closed:
            self._room.clear()
            await self._room.wait()
        if self._machine.closed:
            raise Closed("the client was closed before all messages were acknowledged")

    # --- subscribing

    def subscribe(
        self,
        *topics: str | bytes,
        overflow: Overflow | str = Overflow.DROP_OLDEST,
        mailbox: int | None = None,
        accept_foreign: bool = False,
    ) -> Subscription:
        """Messages of these topics. `await` the result to be attached, or iterate over it."""
        names = tuple(encode_topic(topic) for topic in topics)
        return self._subscription(names, overflow, mailbox, accept_foreign, pattern=False)

    def psubscribe(
        self,
        *patterns: str | bytes,
        overflow: Overflow | str = Overflow.DROP_OLDEST,
        mailbox: int | None = None,
        accept_foreign: bool = False,
    ) -> Subscription:
        """Messages of all topics that match a pattern (`*`, `?`, `[abc]`), on all brokers."""
        names = tuple(encode_topic(pattern) for pattern in patterns)
        return self._subscription(names, overflow, mailbox, accept_foreign, pattern=True)

    def _subscription(
        self, names: tuple[bytes, ...], overflow: Overflow | str, limit: int | None, foreign: bool, *, pattern: bool
    ) -> Subscription:
        if not names:
            raise UsageError("give at least one topic to subscribe to")
        if limit is not None and limit < 1:
            raise UsageError("mailbox must hold at least one message")
        limits = self._limits
        policy = parse_overflow(overflow)
        box = Mailbox(limit or limits.mailbox, limits.mailbox_bytes, policy, accept_foreign=foreign)
        distinct = tuple(dict.fromkeys(names))  # a mailbox gets each message of a topic once
        return Subscription(self, distinct, pattern=pattern, mailbox=box)

    def _attach(
        self, names: tuple[bytes, ...], mailbox: Mailbox, consumer: Consumer, *, pattern: bool
    ) -> asyncio.Future[object]:
        """Begin to attach; if that cannot even begin, nothing is left of it."""
        driver = self._driver
        if driver is None:
            raise _not_open()
        known = mailbox in self._subscriptions
        self._subscriptions[mailbox] = consumer
        attach = self._machine.psubscribe if pattern else self._machine.subscribe
        futures: list[asyncio.Future[None]] = [self._loop.create_future() for _ in names]
        attaching: asyncio.Future[Any] = asyncio.gather(*futures)
        attaching.add_done_callback(_looked_at)
        try:
            for name, future in zip(names, futures, strict=True):
                attach(name, mailbox, future, driver.now())
        except BaseException:
            self._detach(names, mailbox, pattern=pattern)
            if not known:
                self._release(mailbox)
            raise
        driver.settle()
        return attaching

    def _release(self, mailbox: Mailbox) -> None:
        """Nothing is put into the mailbox any more."""
        self._subscriptions.pop(mailbox, None)

    def _detach(self, names: tuple[bytes, ...], mailbox: Mailbox, *, pattern: bool) -> None:
        driver = self._driver
        if mailbox.ended:
            self._subscriptions.pop(mailbox, None)
        if driver is None:
            return
        detach = self._machine.punsubscribe if pattern else self._machine.unsubscribe
        for name in names:
            detach(name, mailbox, driver.now())
        driver.settle()

    def _taken(self, mailbox: Mailbox) -> None:
        """A mailbox was emptied: if it had stopped the sockets, go on reading."""
        if self._blocked_until_s is not None and not any(box.full for box in self._subscriptions):
            self._unblock()

    # --- what the machine says

    def _after(self) -> None:
        machine = self._machine
        if machine.acks:
            acks, machine.acks = machine.acks, []
            for token, receivers in acks:
                if not token.done():  # type: ignore[attr-defined]
                    token.set_result(receivers)  # type: ignore[attr-defined]
        if self._room is not None and not self._room.is_set():
            self._room.set()
        if machine.woken:
            woken, machine.woken = machine.woken, set()
            for mailbox in woken:
                self._deliver(mailbox)
        if machine.effects:
            self._answer_callers()
        machine.wall_offset_s = self._driver.wall_offset_s() if self._driver else 0.0
        self._check_blocked()

    def _answer_callers(self) -> None:
        effects, self._machine.effects[:] = list(self._machine.effects), []
        for effect in effects:
            future = effect.token if isinstance(effect, (Done, Failed)) else None
            if not isinstance(future, asyncio.Future) or future.done():
                continue
            if isinstance(effect, Failed):
                future.set_exception(effect.error)
            else:
                future.set_result(None)

    def _deliver(self, mailbox: Mailbox) -> None:
        subscription = self._subscriptions.get(mailbox)
        if subscription is None:
            return
        subscription._wake()
        if mailbox.overflow is Overflow.BLOCK and mailbox.full and self._blocked_until_s is None and self._driver:
            self._blocked_until_s = self._driver.now() + self._timing.block_s
            self._driver.pause_reading(True)

    def _check_blocked(self) -> None:
        """Markers must get through: a full mailbox may stop the sockets for T_block at most."""
        if self._blocked_until_s is not None and self._driver and self._driver.now() >= self._blocked_until_s:
            self._unblock()

    def _unblock(self) -> None:
        self._blocked_until_s = None
        if self._driver is not None:
            self._driver.pause_reading(False)


def connect(
    *urls: str,
    timing: Timing = DEFAULT_TIMING,
    limits: Limits = DEFAULT_LIMITS,
    resolve: Resolve | None = None,
    bootstrap_s: float = BOOTSTRAP_S,
    patient: bool = True,
) -> Client:
    """A client of the cluster that these servers (any one is enough) belong to. Await it, or use `async with`."""
    return Client(*urls, timing=timing, limits=limits, resolve=resolve, bootstrap_s=bootstrap_s, patient=patient)


def _payload(payload: Payload) -> bytes:
    if type(payload) is bytes:
        return payload
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, (bytearray, memoryview)):
        return bytes(payload)
    raise UsageError(f"a payload must be bytes or str, not {type(payload).__name__}")


def _not_open() -> Closed:
    return Closed("this client is not connected: use `async with nearcast.connect(...)` or await it first")


def _looked_at(future: asyncio.Future[Any]) -> None:
    """Whoever waited may have left: a failure that nobody awaits is no news for the log."""
    if not future.cancelled():
        future.exception()
