"""The client as a program sees it: connect, publish, subscribe."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Collection, Generator
from contextlib import AbstractAsyncContextManager, suppress
from time import time_ns

from nearcast.core.client.machine import Client as Machine
from nearcast.core.client.mailbox import Mailbox, Overflow, parse_overflow
from nearcast.core.client.news import Note, StateChange, for_acknowledgements, for_attachment, summed_up
from nearcast.core.client.publisher import TopicPublisher
from nearcast.core.model.membership import BrokerInfo
from nearcast.core.model.names import decode_topic, encode_topic
from nearcast.core.model.settings import DEFAULT_LIMITS, DEFAULT_TIMING, Limits, Timing
from nearcast.core.wire.backend import ClientLink
from nearcast.core.wire.effects import Done, Failed
from nearcast.core.wire.frames import UserPayload
from nearcast.errors import AuthenticationFailed, Closed, ConnectFailed, PublishBufferFull, TimedOut, UsageError
from nearcast.runtime.calls import (
    CLIENT_DEFAULT,
    TIMEOUT_S,
    Deadlines,
    Diary,
    OnState,
    Overdue,
    Timeout,
    checked,
    timed_out,
    within,
)
from nearcast.runtime.driver import Driver, Resolve, parse_url
from nearcast.runtime.probing import ClientProbes
from nearcast.runtime.reader import From, Reader, Readings, start_of
from nearcast.runtime.subscription import Attaching, Consumers, Subscription, not_open

BOOTSTRAP_S = 10.0

Payload = bytes | str | bytearray | memoryview


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
        timeout_s: float | None = TIMEOUT_S,
        on_state: OnState | None = None,
        probes: bool = True,
    ) -> None:
        """`patient`: keep trying unreachable servers for `bootstrap_s`, instead of trying each one once.

        `timeout_s` limits every call that names no limit of its own; None waits as long as it takes. `on_state` hears
        of changes of the connection to the brokers. `probes`: measure how far brokers are, with a few UDP datagrams.
        """
        if not urls:
            raise UsageError("give the URL of at least one server of the cluster")
        parsed = [parse_url(url) for url in urls]
        self._urls = [address.url for address, _ in parsed]
        self._resolve = resolve
        self._bootstrap_s = bootstrap_s
        self._patient = patient
        self._timeout_s = timeout_s if timeout_s is None else checked(timeout_s)
        client_id = secrets.randbits(64)
        self._diary = Diary(f"client {client_id:016x}", on_state)
        self._machine = Machine(
            client_id, random.Random(), credentials=parsed[0][1], timing=timing, limits=limits, tell=self._tell
        )
        self._driver: Driver | None = None
        self._publishers: dict[str | bytes, TopicPublisher] = {}  # by the name the program uses
        self.consumers = Consumers(self._machine)
        self.readings = Readings(self._machine, self._within)
        self.probes = ClientProbes(self._machine, resolve, enabled=probes)
        self._room: asyncio.Event | None = None

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
        """The brokers of the cluster, as last reported."""
        return dict(self._machine.membership.brokers)

    @property
    def state(self) -> StateChange:
        return self._machine.state

    async def sync(self, *, timeout_s: Timeout = CLIENT_DEFAULT) -> int:
        """Wait until the servers have done what was asked so far. Returns how many servers we are connected to."""
        driver = self._driver
        if driver is None:
            raise not_open()
        links = self._machine.links
        answered: set[ClientLink] = set()
        asked = set(links.all_up())

        def ask(link: ClientLink) -> None:
            link.barrier(lambda now_s: answered.add(link))

        def silent() -> set[ClientLink]:
            return asked.intersection(links.all_up()) - answered

        self._machine.send()  # what was published before must be sent before the question
        for link in asked:
            ask(link)
        driver.soon()
        async with self._within(timeout_s, "no answer", lambda: ", ".join(sorted(link.broker for link in silent()))):
            while silent():
                await self._wait_for_room()
        return len(answered)

    async def _open(self) -> Client:
        if self._driver is not None:
            self._running()
            return self
        self._loop = asyncio.get_running_loop()
        self._driver = self.consumers.driver = Driver(self._machine, self._after, self._resolve, on_tick=self._tick)
        self.readings.driver = self._driver
        self._writer = self._driver
        self._deadlines = Deadlines(self._driver.now)
        self._new_future: Callable[[], asyncio.Future[int]] = self._loop.create_future
        self._room = asyncio.Event()
        for url in self._urls:
            self._machine.links.seed(url, self._driver.now())
        self._driver.start()
        try:
            await self._bootstrap()
            await self.probes.start()
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
                    await self._wait_for_room()  # something has happened
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
        self.probes.stop()
        self.consumers.close()
        self._publishers.clear()
        self._machine.close(driver.now())
        driver.settle()
        await driver.stop()

    def _running(self) -> Driver:
        if self._driver is None:
            raise not_open()
        if self._machine.closed:
            raise Closed("this client is closed: connect a new one")
        return self._driver

    # --- publishing

    async def publish(
        self, topic: str | bytes, payload: Payload, *, user: str = "", timeout_s: Timeout = CLIENT_DEFAULT
    ) -> int:
        """Send a message and wait until it is acknowledged. Returns how many connections it reached.

        `user`: the user a gateway publishes for; subscribers see it as `Message.user`. Raises TimedOut, which says what
        it was waiting for and whether the message may have been sent.
        """
        publisher = self._publishers.get(topic) or self._publisher(topic)
        data = payload if type(payload) is bytes else _payload(payload)
        if user:
            data = UserPayload.of(user, data)
        future = self._new_future()
        limit_s = self._timeout_s if timeout_s is CLIENT_DEFAULT else timeout_s
        sequence = 0
        if limit_s is not None:
            self._deadlines.begin(future, limit_s)
        try:
            while True:
                try:
                    sequence = publisher.publish(data, time_ns(), future)
                    break
                except PublishBufferFull:
                    await self._wait_for_room()
                    if future.done():
                        break
                    publisher = self._publishers.get(topic) or self._publisher(topic)  # it may have ended meanwhile
            writer = self._writer
            writer.unwritten += 1
            if writer.unwritten >= writer.enough:
                writer.write()
            return await future
        except BaseException as error:
            future.cancel()  # no caller waits for the answer or the deadline any more
            if isinstance(error, Overdue):
                raise self._not_acknowledged(publisher, sequence, limit_s) from None
            if sequence and isinstance(error, asyncio.CancelledError):
                publisher.give_up(sequence)
            raise

    def _not_acknowledged(self, publisher: TopicPublisher, sequence: int, limit_s: float | None) -> TimedOut:
        """The error for a caller that stops waiting, which says what became of the message."""
        why = for_acknowledgements([publisher], self._now_s())
        sent = bool(sequence) and not publisher.give_up(sequence)
        fate = "it may have arrived, or may still arrive" if sent else "the message was not sent"
        error = timed_out("not acknowledged", limit_s, f"{why}; {fate}")
        error.sent = sent
        return error

    def publish_nowait(self, topic: str | bytes, payload: Payload) -> None:
        """Send a message without waiting; if a server refuses it, the next `flush()` says so.

        Raises PublishBufferFull at the limit; then `await drain()`.
        """
        publisher = self._publishers.get(topic) or self._publisher(topic)
        publisher.publish(payload if type(payload) is bytes else _payload(payload), time_ns(), None)
        writer = self._writer
        writer.unwritten += 1
        if writer.unwritten >= writer.enough:
            writer.write()

    def _publisher(self, topic: str | bytes) -> TopicPublisher:
        driver = self._running()
        if len(self._publishers) >= self._machine.limits.topics:
            self._publishers.clear()
        publisher = self._publishers[topic] = self._machine.topic_publisher(encode_topic(topic), driver.now())
        if self._machine.ended:
            self._forget_ended()  # to make room for this one
        return publisher

    async def drain(self, *, timeout_s: Timeout = CLIENT_DEFAULT) -> None:
        """Wait until publish_nowait has room again on every topic."""
        full = self._machine.full
        if not full and timeout_s is CLIENT_DEFAULT:
            return  # for programs that call it after every message

        def why() -> str:
            return for_acknowledgements([publisher for publisher in full if not publisher.has_room], self._now_s())

        async with self._within(timeout_s, "no room to publish", why):
            while full:
                publisher = next(iter(full))
                while not publisher.has_room:
                    await self._wait_for_room()
                full.pop(publisher, None)

    async def flush(self, *, timeout_s: Timeout = CLIENT_DEFAULT) -> None:
        """Wait until everything published so far is acknowledged.

        Raises ClusterError if a server has refused messages of `publish_nowait` since the last call, and TimedOut if
        some are still in flight; those carry on.
        """
        goals = [(publisher, publisher.sequence) for publisher in self._machine.in_flight]

        def why() -> str:
            return for_acknowledgements([publisher for publisher, _ in goals], self._now_s())

        async with self._within(timeout_s, "not all acknowledged", why):
            while goals:
                publisher, goal = goals[-1]
                if publisher.acknowledged >= goal:
                    goals.pop()
                else:
                    await self._wait_for_room()
        refused = self._machine.refusals.take()
        if refused:
            raise summed_up(refused)

    def _within(self, timeout_s: Timeout, what: str, why: Callable[[], str]) -> AbstractAsyncContextManager[None]:
        if self._driver is not None:
            self._driver.check_loop()
        return within(self._timeout_s if timeout_s is CLIENT_DEFAULT else timeout_s, what, why)

    def _now_s(self) -> float:
        return self._running().now()

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
        timeout_s: Timeout = CLIENT_DEFAULT,
    ) -> Subscription:
        """Messages of these topics. `await` the result to be attached, or iterate over it.

        `timeout_s` limits the attaching, not the wait for messages.
        """
        box = self._mailbox(overflow, mailbox, accept_foreign)
        return Subscription(self, _names(topics), pattern=False, mailbox=box, timeout_s=timeout_s)

    def psubscribe(
        self,
        *patterns: str | bytes,
        overflow: Overflow | str = Overflow.DROP_OLDEST,
        mailbox: int | None = None,
        accept_foreign: bool = False,
        timeout_s: Timeout = CLIENT_DEFAULT,
    ) -> Subscription:
        """Messages of all topics that match a pattern (`*`, `?`, `[abc]`), on all brokers."""
        box = self._mailbox(overflow, mailbox, accept_foreign)
        return Subscription(self, _names(patterns), pattern=True, mailbox=box, timeout_s=timeout_s)

    def _mailbox(self, overflow: Overflow | str, limit: int | None, foreign: bool) -> Mailbox:
        if limit is not None and limit < 1:
            raise UsageError("mailbox must hold at least one message")
        limits = self._machine.limits
        policy = parse_overflow(overflow)
        return Mailbox(limit or limits.mailbox, limits.mailbox_bytes, policy, accept_foreign=foreign)

    def attaching(self, names: Collection[bytes], timeout_s: Timeout) -> AbstractAsyncContextManager[None]:
        """A time limit for attaching these topics."""
        return self._within(timeout_s, "not attached", lambda: for_attachment(self._machine, names, self._now_s()))

    # --- reading logs

    def read(
        self,
        log: str,
        *,
        group: str = "",
        from_: From = "earliest",
        holds: bool = False,
        timeout_s: Timeout = CLIENT_DEFAULT,
    ) -> Reader:
        """The messages that a log keeps. `await` the result to begin, or iterate over it.

        `from_` says where to begin if nothing was read before: "earliest", "latest", a datetime, or Unix seconds by
        the clocks of the servers. With a `group`, its members share the log, and `commit` notes how far it is. If it
        `holds`, retention by age does not remove what the group has not read; retention by size does.
        """
        return Reader(self.readings, log, group=group, start=start_of(from_), holds=holds, timeout_s=timeout_s)

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
        if machine.ended:
            self._forget_ended()
        if machine.woken:
            woken, machine.woken = machine.woken, set()
            self.consumers.wake(woken)
        if machine.readers.woken:
            self.readings.wake()
        if machine.effects:
            self._answer_callers()
        if self._diary.waiting:
            self._diary.pass_on()

    def _tick(self) -> None:
        if self._driver is not None:
            self._machine.wall_offset_s = self._driver.wall_offset_s()
        self._deadlines.look()
        self.consumers.tick()

    def _tell(self, news: Note | StateChange) -> None:
        self._diary.tell(news, self._loop.time())

    def _forget_ended(self) -> None:
        """Drop topic publishers that ended for lack of messages; the next message on the topic starts a new one."""
        ended, self._machine.ended = self._machine.ended, []
        for topic in ended:
            self._publishers.pop(topic, None)
            self._publishers.pop(decode_topic(topic), None)

    def _answer_callers(self) -> None:
        effects, self._machine.effects[:] = list(self._machine.effects), []
        for effect in effects:
            token = effect.token if isinstance(effect, (Done, Failed)) else None
            if isinstance(effect, Failed):
                if isinstance(token, Attaching):
                    token.failed(effect.error)
                elif isinstance(token, asyncio.Future) and not token.done():
                    token.set_exception(effect.error)
            elif isinstance(token, Attaching):
                token.attached()
            elif isinstance(token, asyncio.Future) and not token.done():
                token.set_result(None)


def _names(names: tuple[str | bytes, ...]) -> tuple[bytes, ...]:
    """Without duplicates: a mailbox gets each message of a topic once."""
    if not names:
        raise UsageError("give at least one topic to subscribe to")
    return tuple(dict.fromkeys(encode_topic(name) for name in names))


def _payload(payload: Payload) -> bytes:
    if type(payload) is bytes:
        return payload
    if isinstance(payload, str):
        return payload.encode()
    if isinstance(payload, (bytearray, memoryview)):
        return bytes(payload)
    raise UsageError(f"a payload must be bytes or str, not {type(payload).__name__}")
