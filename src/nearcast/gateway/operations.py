"""Operations: what a subscriber asks of a gateway, carried out against the data cluster, the store and the topics.

An operation ends with its session, because work for subscribers who have left would pile up in memory. Only writes to
the store are completed, because a partial write would leave unknown holders behind.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from nearcast.core.model.names import encode_topic
from nearcast.core.model.tokens import Token
from nearcast.core.wire.gateway import (
    Done,
    Held,
    Login,
    Operation,
    Publish,
    Refused,
    Subscribe,
    SubscribeTopic,
    Unsubscribe,
    UnsubscribeTopic,
    Welcome,
    unpacked,
)
from nearcast.errors import NearcastError
from nearcast.errors import Refused as NotPossible
from nearcast.gateway.data_cluster import Granted, Wanted
from nearcast.gateway.directory import Entry
from nearcast.gateway.rights import Act
from nearcast.gateway.session import Delivery, Session

if TYPE_CHECKING:
    from nearcast.gateway.service import Gateway


log = logging.getLogger("nearcast.gateway")

ATTACH_S = 2.0  # how long a login waits for the data cluster; if it is away, the rest follows later
SUBSCRIBE_S = 20.0  # how long a new subscription waits for it
PARAMETERS_BYTES_MAX = 8192  # the data cluster takes half of it, in a form that may be shorter
FAILED = "the gateway failed and has logged the error: try again later"


class Operations:
    """Carries out the operations of one gateway's subscribers."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._bringing: dict[Session, asyncio.Future[dict[str, str]]] = {}  # their subscriptions are not here yet
        self._running: dict[Session, set[asyncio.Task[None]]] = {}
        self.failures = 0  # operations that ended with an unexpected error

    # --- login

    async def welcome(self, session: Session, login: Login, token: Token) -> None:
        """Open the session, and start to deliver what the user is subscribed to."""
        gateway = self._gateway
        try:
            await gateway.upkeep.store_cursors_of(login.user)
            entries = await gateway.directory.entries(login.user)
            others = await gateway.directory.gateways()
        except BaseException:
            gateway.arrived(login.user)
            raise
        others.pop(gateway.broker, None)
        bringing = asyncio.ensure_future(self._bring_home(login.user, token.registration, entries))
        bringing.add_done_callback(lambda _: gateway.arrived(login.user))
        # Hold them here first, then make this her home: the old gateway lets go when it sees the new home.
        done, _ = await asyncio.wait([bringing], timeout=ATTACH_S)
        held = [Held(id, entry.channel, entry.parameters, entry.from_execution) for id, entry in entries.items()]
        session.welcomed(login.user, token, Welcome(gateway.broker, held, others))
        if not session.is_open:
            return
        gateway.admit(session, login.user)
        start = partial(self._start_deliveries, session, login, entries, bringing)
        if done:
            start()
        else:
            self._bringing[session] = bringing
            bringing.add_done_callback(lambda _: start())

    def forget(self, session: Session) -> None:
        """Cancel the work of a session that has ended."""
        bringing = self._bringing.pop(session, None)
        if bringing is not None:
            bringing.cancel()
        for task in self._running.pop(session, ()):
            task.cancel()

    async def _bring_home(self, user: str, registration: str, entries: dict[str, Entry]) -> dict[str, str]:
        """Hold all the user's subscriptions at this broker; returns what is wrong with those that cannot be held."""
        gateway = self._gateway
        hold = partial(gateway.sharing.hold, user)
        problems: dict[str, str] = {}
        asked: dict[str, asyncio.Future[Granted]] = {}
        try:
            for subscription, entry in entries.items():
                if gateway.backend_subscriptions.has(subscription):
                    hold(subscription)
                else:
                    asked[subscription] = gateway.backend_subscriptions.attach(
                        Wanted(entry.channel, entry.parameters, user), hold
                    )
            for subscription, future in asked.items():
                granted = await future
                if granted.subscription != subscription:
                    problems[subscription] = granted.problem or "its channel was created again: subscribe again"
        finally:
            for future in asked.values():
                future.cancel()
        await gateway.directory.settle(user, registration, gateway.broker, [id for id in entries if id not in problems])
        return problems

    def _start_deliveries(
        self, session: Session, login: Login, entries: dict[str, Entry], bringing: asyncio.Future[dict[str, str]]
    ) -> None:
        self._bringing.pop(session, None)
        if bringing.cancelled() or not session.is_open:
            return
        error = bringing.exception()
        if error is not None:
            session.end(f"your subscriptions could not be moved to this gateway: {error}; log in again")
            return
        problems = bringing.result()
        for subscription, entry in entries.items():
            if subscription in problems:
                session.send(Refused(None, f"subscription {subscription}: {problems[subscription]}"))
                continue
            cursor = max(entry.cursor, login.cursors.get(subscription, 0))
            self._gateway.listeners.add(session, Delivery(subscription, entry.channel, entry.from_execution, cursor))

    async def _brought_home(self, session: Session) -> None:
        """Wait until the user's subscriptions are known here: she may ask about them earlier."""
        bringing = self._bringing.get(session)
        if bringing is not None and not (await asyncio.wait([bringing], timeout=SUBSCRIBE_S))[0]:
            raise NotPossible("the data cluster does not answer, so subscriptions are not here yet: try again later")

    # --- the others

    def start(self, session: Session, operation: Operation) -> None:
        """Carry out the operation, and answer."""
        task = self._gateway.run_task(self._perform(session, operation))
        running = self._running.setdefault(session, set())
        running.add(task)
        task.add_done_callback(running.discard)

    async def _perform(self, session: Session, operation: Operation) -> None:
        try:
            session.answer(await self._carry_out(session, operation))
        except NearcastError as error:
            session.answer(Refused(operation.ref, str(error)))
        except Exception:
            self.failures += 1
            log.exception("an operation of %s failed: %.500r", session.user, operation)
            session.answer(Refused(operation.ref, FAILED))

    async def _carry_out(self, session: Session, operation: Operation) -> Done:
        match operation:
            case Subscribe():
                return await self._subscribe(session, operation)
            case Unsubscribe():
                return await self._unsubscribe(session, operation)
            case Publish():
                await self._publish(session, operation)
            case SubscribeTopic():
                await self._subscribe_topic(session, operation)
            case UnsubscribeTopic():
                self._gateway.topics.leave(session, operation.topic)
        return Done(operation.ref)

    async def _subscribe(self, session: Session, wanted: Subscribe) -> Done:
        await self._brought_home(session)
        if len(session.deliveries) + session.subscribing >= self._gateway.settings.subscriptions:
            raise NotPossible(f"you have {len(session.deliveries)} subscriptions: end some first")
        session.subscribing += 1
        try:
            return await self._subscribe_now(session, wanted)
        finally:
            session.subscribing -= 1

    async def _subscribe_now(self, session: Session, wanted: Subscribe) -> Done:
        if len(msgspec.json.encode(wanted.parameters)) > PARAMETERS_BYTES_MAX:
            raise NotPossible(f"the parameters are too long: give at most {PARAMETERS_BYTES_MAX} bytes of JSON")
        granted = await self._granted(session.user, Wanted(wanted.channel, wanted.parameters, session.user))
        if granted.problem:
            raise NotPossible(f"{granted.problem}: {granted.hint}" if granted.hint else granted.problem)
        return await self._finish(self._keep(session, wanted, granted))

    async def _granted(self, user: str, wanted: Wanted) -> Granted:
        """The data cluster's answer; after it `user` holds the subscription."""
        attaching = self._gateway.backend_subscriptions.attach(wanted, partial(self._gateway.sharing.hold, user))
        try:
            await asyncio.wait([attaching], timeout=SUBSCRIBE_S)
        except asyncio.CancelledError:
            if attaching.cancel():
                raise
            return attaching.result()  # it was granted just before, and is held: the session's end is handled later
        if attaching.cancel():
            raise NotPossible("the data cluster does not answer: try again later")
        return attaching.result()

    async def _keep(self, session: Session, wanted: Subscribe, granted: Granted) -> Done:
        """Store what was granted, and start to deliver."""
        gateway, user, subscription = self._gateway, session.user, granted.subscription
        entry = Entry(granted.channel, wanted.parameters, granted.from_execution)
        try:
            entry = await gateway.directory.add(user, session.registration, gateway.broker, subscription, entry)
        except NearcastError:
            if subscription not in session.deliveries:
                gateway.let_go(user, subscription)
            raise
        if session.is_open and subscription not in session.deliveries:
            delivery = Delivery(subscription, entry.channel, entry.from_execution, entry.cursor)
            gateway.listeners.add(session, delivery)
        return Done(wanted.ref, subscription, entry.from_execution)

    async def _finish(self, job: Coroutine[Any, Any, Done]) -> Done:
        """The job's result; the job carries on if the caller is cancelled."""
        return await asyncio.shield(self._gateway.run_task(job))

    async def _unsubscribe(self, session: Session, unwanted: Unsubscribe) -> Done:
        await self._brought_home(session)
        if unwanted.subscription not in session.deliveries:
            raise NotPossible(f"you have no subscription {unwanted.subscription[:80]!r}")
        return await self._finish(self._drop(session, unwanted))

    async def _drop(self, session: Session, unwanted: Unsubscribe) -> Done:
        gateway, subscription = self._gateway, unwanted.subscription
        await gateway.directory.remove(session.user, gateway.broker, subscription)
        gateway.listeners.remove(session, [subscription])
        gateway.let_go(session.user, subscription)
        return Done(unwanted.ref)

    async def _publish(self, session: Session, message: Publish) -> None:
        payload = unpacked(message.payload, message.encoding)
        self._use_topic(session, Act.PUBLISH, message.topic)
        await self._gateway.topics.publish(session, message.topic, payload)

    def _use_topic(self, session: Session, act: Act, topic: str) -> None:
        """Raises if the user may not use this topic."""
        encode_topic(topic)
        self._gateway.rights.check(act, session.user, topic)
        self._gateway.new_topics.use(session.user, topic, time.monotonic())

    async def _subscribe_topic(self, session: Session, wanted: SubscribeTopic) -> None:
        if len(session.topics) >= self._gateway.settings.topics:
            raise NotPossible(f"you have {len(session.topics)} topics: leave some first")
        self._use_topic(session, Act.SUBSCRIBE, wanted.topic)
        await self._gateway.topics.join(session, wanted.topic)
        if not session.is_open:
            self._gateway.topics.leave(session, wanted.topic)
