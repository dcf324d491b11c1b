"""A subscriber's client: logs in at a gateway, and stays logged in.

    async with Subscriber.connect("http://gateway.example.com:8080", "ann", token=token) as subscriber:
        subscription = await subscriber.subscribe("near_me", kind="fire")
        async for event in subscriber.events():
            match event:
                case Result(rows=rows): ...
                case Missed() | TopicMessage() | TopicGap() | Lagging() | Refused(): ...

After a lost connection it connects again, to the same gateway or another one, and continues after the last execution
received. If the token is no longer valid, `get` and all operations raise AuthenticationFailed: register, or ask the
operator. When a gateway orders a move, it logs in at the new gateway before it logs out at the old one. Each result
comes once, in order. Topic messages are not stored anywhere: what a lost connection may have cost is reported as
TopicGap.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Self

from nearcast.core.wire.gateway import (
    Done,
    FromGateway,
    Held,
    Lagging,
    Login,
    Missed,
    Move,
    Operation,
    Publish,
    Result,
    Subscribe,
    SubscribeTopic,
    TopicGap,
    TopicMessage,
    Unsubscribe,
    UnsubscribeTopic,
    Welcome,
    packed,
)
from nearcast.core.wire.gateway import Refused as RefusedFrame
from nearcast.errors import AuthenticationFailed, Closed, ClusterError, ConnectFailed, NearcastError, Unavailable
from nearcast.runtime.workers import Pauses
from nearcast.subscriber import transport as carriers
from nearcast.subscriber.nearest import nearest as nearest_gateway
from nearcast.subscriber.passport import Passport
from nearcast.subscriber.transport import Line, Progress

log = logging.getLogger("nearcast.subscriber")

EVENTS_MAX = 10_000  # waiting for the program; beyond that the client stops reading, and the gateway keeps the rest
PARKED_MAX = 10_000  # topic messages of a new gateway that wait for the last ones of the old one; more end the wait
CONNECT_S = 20.0  # for the first login
OPERATION_S = 30.0  # for an operation, over lost connections
STEADY_S = 10.0  # a session that lasted this long was a good one
ACKNOWLEDGE_S = 0.2  # acknowledgements are gathered for this long and sent together

Event = Result | Missed | TopicMessage | TopicGap | Lagging | RefusedFrame


class Subscriber:
    """One user's session with the cluster, at any of its gateways. Make it with `Subscriber.connect`."""

    def __init__(
        self, passport: Passport, others: Iterable[str], carrier: type[carriers.Carrier], *, nearest: bool = False
    ) -> None:
        self.user = passport.user
        self.url = passport.url
        self.broker = ""
        self.held: dict[str, Held] = {}
        self.moves = 0
        self.reconnects = 0
        self._others = [other.rstrip("/") for other in others]
        self._passport = passport
        self._nearest = nearest
        self._carrier = carrier
        self._progress = Progress()
        self._topics: dict[str, None] = {}
        self._refs = itertools.count(1)
        self._events: asyncio.Queue[Event | None] = asyncio.Queue()  # bounded by `_room`
        self._room = asyncio.Event()
        self._given: Event | None = None  # given to the program, which has not asked for the next yet
        self._handled: dict[str, int] = {}  # cursors to acknowledge
        self._acknowledging: asyncio.TimerHandle | None = None
        self._line: Line | None = None
        self._ready = asyncio.Event()  # there is a line, and it is not about to be replaced
        self._switching = asyncio.Lock()
        self._order: tuple[Line, str] | None = None  # to move: from which line and where to; the newest counts
        self._parking: Line | None = None
        self._parked: list[TopicMessage | TopicGap] = []
        self._failure: NearcastError | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def connect(
        cls,
        url: str,
        user: str,
        *,
        token: str = "",
        tokens: str | os.PathLike[str] | None = "",
        secret: str = "",
        others: Iterable[str] = (),
        nearest: bool = False,
        long_poll: bool = False,
    ) -> Self:
        """Use it with `async with`. `others`: more gateways. `nearest`: measure how far they are, then choose.

        Without a token the user is registered first, with the `secret` if the gateway wants one. The token is kept for
        next time: in the file `tokens`, by default one in the user's configuration folder, or nowhere if that is None.
        """
        carrier = carriers.LongPollCarrier if long_poll else carriers.WebSocketCarrier
        passport = Passport(url.rstrip("/"), user, token, tokens, secret)
        return cls(passport, others, carrier, nearest=nearest)

    async def __aenter__(self) -> Self:
        await self._passport.obtain()
        if self._nearest:
            self._others.append(self.url)
            self.url = await nearest_gateway(self.url, self.user)
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._first_login()
        except TimeoutError:
            raise ConnectFailed(f"{self.url}: no login within {CONNECT_S:g} s") from None
        self._spawn(self._stay_connected())
        return self

    async def _first_login(self) -> None:
        try:
            await self._connect(Pauses())
        except AuthenticationFailed:
            if not await self._passport.replace():
                raise
            await self._connect(Pauses())

    async def __aexit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        await self.close(acknowledge=kind is None)

    async def close(self, *, acknowledge: bool = True) -> None:
        """Log out. Subscriptions stay, and results that come meanwhile are delivered at the next login."""
        self._fail(Closed("this subscriber is closed: connect a new one"))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if acknowledge:
            self._acknowledge_given()
        line, self._line = self._line, None
        if line is not None:
            with contextlib.suppress(ConnectFailed):
                await self._send_handled(line)
            await line.leave()

    @property
    def token(self) -> str:
        """The token that the user logs in with."""
        return self._passport.token

    @property
    def cursors(self) -> dict[str, int]:
        """The last execution received of each subscription."""
        return dict(self._progress.cursors)

    @property
    def repeats(self) -> int:
        """How many frames came twice and were dropped."""
        return self._progress.repeats

    # --- operations

    async def subscribe(self, channel: str, /, **parameters: Any) -> str:
        """Returns the subscription's id, which its results carry."""
        done = await self._operate(lambda ref: Subscribe(ref, channel, parameters))
        self.held[done.subscription] = Held(done.subscription, channel, parameters, done.from_execution)
        return done.subscription

    async def unsubscribe(self, subscription: str) -> None:
        await self._operate(lambda ref: Unsubscribe(ref, subscription))
        self.held.pop(subscription, None)
        self._progress.forget(subscription)

    async def publish(self, topic: str, payload: str | bytes) -> None:
        """Returns when the message is acknowledged. Unavailable: it is unknown whether it was published."""
        text, encoding = packed(payload.encode() if isinstance(payload, str) else payload)
        await self._operate(lambda ref: Publish(ref, topic, text, encoding), again=False)

    async def subscribe_topic(self, topic: str) -> None:
        await self._operate(lambda ref: SubscribeTopic(ref, topic))
        self._topics[topic] = None

    async def unsubscribe_topic(self, topic: str) -> None:
        await self._operate(lambda ref: UnsubscribeTopic(ref, topic))
        self._topics.pop(topic, None)

    async def _operate(self, make: Callable[[int], Operation], *, again: bool = True) -> Done:
        try:
            async with asyncio.timeout(OPERATION_S):
                while True:
                    line = await self._ready_line()
                    try:
                        return await line.ask(make(next(self._refs)))
                    except ConnectFailed as error:
                        if not again:
                            raise Unavailable(f"the connection was lost before the answer came: {error}") from None
                        await asyncio.sleep(0)
        except TimeoutError:
            raise Unavailable(f"{self.url}: no answer within {OPERATION_S:g} s") from None

    async def _ready_line(self) -> Line:
        while True:
            if self._failure is not None:
                raise self._failure
            await self._ready.wait()
            line = self._line
            if line is not None and line.reading is not None and not line.reading.done():
                return line
            self._ready.clear()

    # --- events

    async def events(self) -> AsyncIterator[Event]:
        """All events, until the subscriber is closed. Asking for the next one acknowledges the one before."""
        with contextlib.suppress(Closed):
            while True:
                yield await self.get()

    async def get(self) -> Event:
        """The next event. Closed: there will be no more."""
        self._acknowledge_given()
        event = await self._events.get() if self._failure is None else None
        self._room.set()
        if self._failure is not None:  # what waits was not acknowledged, and comes again at the next login
            raise self._failure
        assert event is not None
        self._given = event
        return event

    def _acknowledge_given(self) -> None:
        given, self._given = self._given, None
        match given:
            case Result(subscription=subscription, execution=execution):
                self._handled[subscription] = execution
            case Missed(subscription=subscription, upto=execution):
                self._handled[subscription] = execution
            case _:
                return
        if self._acknowledging is None and self._failure is None:
            loop = asyncio.get_running_loop()
            self._acknowledging = loop.call_later(ACKNOWLEDGE_S, lambda: self._spawn(self._acknowledge()))

    async def _acknowledge(self) -> None:
        self._acknowledging = None
        with contextlib.suppress(ConnectFailed):  # the next login sends the cursors
            if self._line is not None:
                await self._send_handled(self._line)

    async def _send_handled(self, line: Line) -> None:
        """If this is cancelled, the canceller sends again what was in flight."""
        while self._handled:
            subscription, execution = next(iter(self._handled.items()))
            await line.acknowledge(subscription, execution)
            if self._handled.get(subscription) == execution:
                del self._handled[subscription]

    async def _receive(self, line: Line, frame: FromGateway) -> None:
        match frame:
            case Move():
                if self._order is None:
                    self._spawn(self._follow_order())
                self._order = (line, frame.url.rstrip("/"))
            case TopicMessage() | TopicGap() if line is self._parking:
                self._parked.append(frame)
                if len(self._parked) >= PARKED_MAX:
                    self._unpark()
            case Result() | Missed() | TopicMessage() | TopicGap() | Lagging() | RefusedFrame():
                self._take(frame)
                await self._wait_for_room()
            case _:
                pass

    def _take(self, frame: Event) -> None:
        """Count it as received and give it to the program in one step: a cancelled reader loses nothing."""
        if self._failure is None and self._progress.is_new(frame):
            self._events.put_nowait(frame)

    async def _wait_for_room(self) -> None:
        while self._events.qsize() >= EVENTS_MAX and self._failure is None:
            self._room.clear()
            await self._room.wait()

    # --- lines

    def _login(self) -> Login:
        return Login(self.user, self.token, self.cursors)

    async def _open_line(self, url: str) -> tuple[Line, Welcome]:
        line = Line(url, self._carrier(url), self._receive)  # type: ignore[call-arg]
        return line, await line.open(self._login())

    async def _connect(self, pauses: Pauses) -> None:
        """Open a line to our gateway, or to another one; tries until there is one, or raises AuthenticationFailed."""
        for attempt in itertools.count():
            try:
                line, welcome = await self._open_line(self._candidate(attempt))
                break
            except ConnectFailed as error:
                log.info("no session yet: %s", error)
            await asyncio.sleep(pauses.next_s())
        line.start()
        self._use(line, welcome)

    def _candidate(self, attempt: int) -> str:
        """Our own gateway every second time, the others in between."""
        return random.choice(self._others) if attempt % 2 and self._others else self.url

    def _use(self, line: Line, welcome: Welcome) -> None:
        self._line, self.url, self.broker = line, line.url, welcome.broker
        self.held = {held.subscription: held for held in welcome.subscriptions}
        if welcome.gateways:
            self._others = [url for url in welcome.gateways.values() if url != line.url]
        self._ready.set()

    async def _stay_connected(self) -> None:
        """A session that ended soon after its login is followed by a pause, as a failed attempt is."""
        pauses = Pauses()
        while True:
            line, began_s = self._line, time.monotonic()
            assert line is not None
            assert line.reading is not None
            await asyncio.wait([line.reading])
            if time.monotonic() - began_s > STEADY_S:
                pauses.reset()
            async with self._switching:
                if self._line is not line:
                    continue  # it was left for another one
                self._ready.clear()
                self._line = None
                await line.close()
                if line.final:
                    self._fail(Closed(f"{line.url} ended the session for good: {line.goodbye}"))
                    return
                log.info("the session at %s ended: %s", line.url, line.goodbye)
                await asyncio.sleep(pauses.next_s())
                try:
                    await self._connect(pauses)
                except AuthenticationFailed as error:
                    self._fail(error)
                    return
                self.reconnects += 1
            self._spawn(self._resume_topics())

    async def _resume_topics(self) -> None:
        """Rejoin the topics. Their messages were not kept while we were away."""
        for topic in list(self._topics):
            with contextlib.suppress(ClusterError):
                await self._operate(lambda ref, topic=topic: SubscribeTopic(ref, topic))  # type: ignore[misc]
            self._take(TopicGap(topic, None, "the connection to the gateway was lost"))

    async def _follow_order(self) -> None:
        """Log in at the new gateway, then leave the old one.

        If the new gateway refuses us, or we are waiting for answers, we stay for now: the order will be repeated.
        """
        async with self._switching:
            order, self._order = self._order, None
            if order is None or order[0] is not self._line or order[1] == self.url:
                return
            line, url = order
            self._ready.clear()
            try:
                # The new gateway would not know what this one still has to do.
                if await line.answered():
                    await self._switch(line, url)
            except ClusterError:
                self._parking, self._parked = None, []
            finally:
                self._ready.set()
            self._unpark()

    async def _switch(self, old: Line, url: str) -> None:
        new, welcome = await self._open_line(url)
        self._parking = new
        new.start()
        try:
            for topic in list(self._topics):
                await new.ask(SubscribeTopic(next(self._refs), topic))
        except ClusterError:
            await new.close()
            raise
        self._use(new, welcome)
        self.moves += 1
        if not await old.leave():
            for topic in self._topics:
                self._take(TopicGap(topic, None, "the last messages of the previous gateway did not arrive"))

    def _unpark(self) -> None:
        """The old gateway has sent everything: now take the messages of the new one, without those we have."""
        parked, self._parking, self._parked = self._parked, None, []
        for frame in parked:
            self._take(frame)

    # --- inside

    def _spawn(self, job: Any) -> None:
        if self._failure is not None:
            job.close()
            return
        task = asyncio.create_task(job)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """An unexpected error must not leave the program waiting for events that will not come."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, NearcastError):
            log.error("a subscriber failed", exc_info=error)
            self._fail(ClusterError(f"an unexpected error has ended this subscriber: {error!r}: connect a new one"))

    def _fail(self, error: NearcastError) -> None:
        if self._failure is None:
            self._failure = error
            self._ready.set()
            self._room.set()
            self._events.put_nowait(None)
