"""Operations: what a subscriber asks of a gateway, carried out against the data cluster, the store and the topics."""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from nearcast.errors import NearcastError
from nearcast.errors import Refused as NotPossible
from nearcast.gateway.data_cluster import Granted
from nearcast.gateway.delivery import Delivery
from nearcast.gateway.directory import Entry
from nearcast.gateway.frames import (
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
from nearcast.gateway.session import Session

if TYPE_CHECKING:
    from nearcast.gateway.service import Gateway

log = logging.getLogger("nearcast.gateway")

ATTACH_S = 2.0  # a login waits so long for the data cluster; if it is away, the rest follows later
SUBSCRIBE_S = 20.0  # a new subscription waits so long for it


class Operations:
    """Of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._bringing: dict[Session, asyncio.Future[dict[str, str]]] = {}  # sessions whose subscriptions are to come

    # --- login

    async def welcome(self, session: Session, login: Login) -> None:
        """Open the session, and begin to deliver what the user has subscriptions for."""
        gateway = self._gateway
        try:
            await gateway.store_cursors_of(login.user)
            entries = await gateway.directory.entries(login.user)
            others = await gateway.directory.gateways()
        except BaseException:
            gateway.arrived(login.user)
            raise
        others.pop(gateway.broker, None)
        bringing = asyncio.ensure_future(self._bring_home(login.user, entries))
        bringing.add_done_callback(lambda _: gateway.arrived(login.user))
        # Held here first, then at home here: the gateway before lets go when it sees the new home.
        done, _ = await asyncio.wait([bringing], timeout=ATTACH_S)
        held = [Held(id, entry.channel, entry.parameters, entry.from_execution) for id, entry in entries.items()]
        session.welcomed(login.user, Welcome(gateway.broker, held, others))
        if not session.is_open:
            return
        gateway.admit(session, login.user)
        start = partial(self._start_deliveries, session, login, entries, bringing)
        if done:
            start()
        else:
            self._bringing[session] = bringing
            bringing.add_done_callback(lambda _: start())

    async def _bring_home(self, user: str, entries: dict[str, Entry]) -> dict[str, str]:
        """Hold all the user's subscriptions at this broker; what is wrong with those that cannot be."""
        gateway = self._gateway
        hold = partial(gateway.sharing.hold, user)
        problems: dict[str, str] = {}
        asked: dict[str, asyncio.Future[Granted]] = {}
        for subscription, entry in entries.items():
            if gateway.holdings.has(subscription):
                hold(subscription)
            else:
                asked[subscription] = gateway.holdings.attach(entry.channel, entry.parameters, hold)
        for subscription, future in asked.items():
            granted = await future
            if granted.subscription != subscription:
                problems[subscription] = granted.problem or "its channel was created anew: subscribe again"
        await gateway.directory.settle(user, gateway.broker, [id for id in entries if id not in problems])
        return problems

    def _start_deliveries(
        self, session: Session, login: Login, entries: dict[str, Entry], bringing: asyncio.Future[dict[str, str]]
    ) -> None:
        self._bringing.pop(session, None)
        if bringing.cancelled() or not session.is_open:
            return
        error = bringing.exception()
        if error is not None:
            session.end(f"your subscriptions could not be taken over, log in again: {error}")
            return
        problems = bringing.result()
        for subscription, entry in entries.items():
            if subscription in problems:
                session.send(Refused(None, f"subscription {subscription}: {problems[subscription]}"))
                continue
            cursor = max(entry.cursor, login.cursors.get(subscription, 0))
            self._gateway.audience.add(session, Delivery(subscription, entry.channel, entry.from_execution, cursor))

    async def _brought_home(self, session: Session) -> None:
        """Until what the user has is known here: she may ask about it before."""
        bringing = self._bringing.get(session)
        if bringing is not None and not (await asyncio.wait([bringing], timeout=SUBSCRIBE_S))[0]:
            raise NotPossible("your subscriptions are not here yet, the data cluster does not answer: try again later")

    # --- the others

    async def perform(self, session: Session, operation: Operation) -> None:
        try:
            match operation:
                case Subscribe():
                    done = await self._subscribe(session, operation)
                case Unsubscribe():
                    done = await self._unsubscribe(session, operation)
                case Publish():
                    await self._gateway.topics.publish(operation.topic, unpacked(operation.payload, operation.encoding))
                    done = Done(operation.ref)
                case SubscribeTopic():
                    done = await self._subscribe_topic(session, operation)
                case UnsubscribeTopic():
                    self._gateway.topics.leave(session, operation.topic)
                    done = Done(operation.ref)
            session.answer(done)
        except NearcastError as error:
            session.answer(Refused(operation.ref, str(error)))

    async def _subscribe(self, session: Session, wanted: Subscribe) -> Done:
        gateway, user = self._gateway, session.user
        await self._brought_home(session)
        if len(session.deliveries) >= gateway.settings.subscriptions:
            raise NotPossible(f"you have {len(session.deliveries)} subscriptions: end some first")
        attaching = gateway.holdings.attach(wanted.channel, wanted.parameters, partial(gateway.sharing.hold, user))
        try:
            granted = await asyncio.wait_for(attaching, SUBSCRIBE_S)
        except TimeoutError:
            raise NotPossible("the data cluster does not answer: try again later") from None
        if granted.problem:
            raise NotPossible(f"{granted.problem}: {granted.hint}" if granted.hint else granted.problem)
        subscription = granted.subscription
        entry = Entry(granted.channel, wanted.parameters, granted.from_execution)
        try:
            entry = await gateway.directory.add(user, gateway.broker, subscription, entry)
        except NearcastError:
            if subscription not in session.deliveries:
                gateway.let_go(user, subscription)
            raise
        if session.is_open and subscription not in session.deliveries:
            delivery = Delivery(subscription, entry.channel, entry.from_execution, entry.cursor)
            gateway.audience.add(session, delivery)
        return Done(wanted.ref, subscription, entry.from_execution)

    async def _unsubscribe(self, session: Session, unwanted: Unsubscribe) -> Done:
        gateway, subscription = self._gateway, unwanted.subscription
        await self._brought_home(session)
        if subscription not in session.deliveries:
            raise NotPossible(f"you have no subscription {subscription[:80]!r}")
        await gateway.directory.remove(session.user, gateway.broker, subscription)
        gateway.audience.remove(session, [subscription])
        gateway.let_go(session.user, subscription)
        return Done(unwanted.ref)

    async def _subscribe_topic(self, session: Session, wanted: SubscribeTopic) -> Done:
        if len(session.topics) >= self._gateway.settings.topics:
            raise NotPossible(f"you have {len(session.topics)} topics: leave some first")
        await self._gateway.topics.join(session, wanted.topic)
        if not session.is_open:
            self._gateway.topics.leave(session, wanted.topic)
        return Done(wanted.ref)
