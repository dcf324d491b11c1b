"""How results get from the data cluster to a gateway's sessions: notified, fetched once, delivered or caught up.

`NotificationLoop` learns which executions have results, `Listeners` hands them to sessions, `Results` fetches them, and
`CatchUp` brings a session that lacks some up to date.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable

import msgspec

from nearcast.core.wire.gateway import Refused, encode
from nearcast.errors import ClusterError
from nearcast.gateway.data_cluster import DataCluster, DataClusterRefused, Gone, Notification
from nearcast.gateway.session import Delivery, DeliveryState, Session
from nearcast.gateway.subscriptions import BackendSubscriptions
from nearcast.runtime.workers import Pauses

Key = tuple[str, int]  # channel, execution

_LOCKS = 64  # an execution is fetched by one task at a time; two that share a lock merely wait


class _ResultFrame(msgspec.Struct, tag_field="type", tag="result"):
    """`frames.Result`, with its rows left as the data cluster encoded them."""

    subscription: str
    channel: str
    execution: int
    rows: msgspec.Raw


# --- fetching


class Results:
    """Fetches results, and keeps them for a while for sessions that catch up.

    A result frame is the same for every subscriber of a subscription, so it is encoded once and shared. At most `kept`
    executions and `kept_bytes` bytes are kept; the least recently used are dropped.
    """

    def __init__(self, data: DataCluster, kept: int, kept_bytes: int) -> None:
        self._data = data
        self._kept = kept
        self._kept_bytes = kept_bytes
        self._bytes = 0
        self._frames: OrderedDict[Key, dict[str, bytes | None]] = OrderedDict()
        self._fetching = [asyncio.Lock() for _ in range(_LOCKS)]
        self.fetches = 0  # requests made

    async def frames(self, channel: str, execution: int, subscriptions: Iterable[str]) -> dict[str, bytes | None]:
        """The frame of each subscription; None where the execution has no result for it."""
        key = (channel, execution)
        wanted = list(subscriptions)
        async with self._fetching[hash(key) % _LOCKS]:
            have = self._frames.get(key, {})
            lacking = [subscription for subscription in wanted if subscription not in have]
            if lacking:
                have = {**have, **await self._fetch(channel, execution, lacking)}
            self._keep(key, have)
        return {subscription: have[subscription] for subscription in wanted}

    async def _fetch(self, channel: str, execution: int, subscriptions: list[str]) -> dict[str, bytes | None]:
        self.fetches += 1
        rows = await self._data.results(channel, execution, subscriptions)
        return {
            subscription: encode(_ResultFrame(subscription, channel, execution, rows[subscription]))
            if subscription in rows
            else None
            for subscription in subscriptions
        }

    def _keep(self, key: Key, frames: dict[str, bytes | None]) -> None:
        self._bytes += _size(frames) - _size(self._frames.pop(key, {}))
        self._frames[key] = frames
        while self._frames and (len(self._frames) > self._kept or self._bytes > self._kept_bytes):
            _, oldest = self._frames.popitem(last=False)
            self._bytes -= _size(oldest)


def _size(frames: dict[str, bytes | None]) -> int:
    return sum(len(frame) for frame in frames.values() if frame is not None)


# --- listeners


_NONE: dict[Session, Delivery] = {}


class Listeners:
    """Knows which sessions of a gateway listen to which backend subscription, and hands them notified executions.

    An execution is fetched once for all subscriptions that have listeners, no matter how many subscribers there are.
    `unheld(subscription)` is called when a notified subscription is held by no user here.
    """

    def __init__(self, results: Results, is_held: Callable[[str], bool], unheld: Callable[[str], None]) -> None:
        self._results = results
        self._is_held = is_held
        self._unheld = unheld
        self._listeners: dict[str, dict[Session, Delivery]] = {}

    def add(self, session: Session, delivery: Delivery) -> None:
        """The delivery starts by catching up, so nothing notified earlier is missed."""
        session.deliveries[delivery.subscription] = delivery
        self._listeners.setdefault(delivery.subscription, {})[session] = delivery
        session.has_work()

    def remove(self, session: Session, subscriptions: Iterable[str]) -> None:
        for subscription in list(subscriptions):
            session.deliveries.pop(subscription, None)
            listeners = self._listeners.get(subscription, _NONE)
            listeners.pop(session, None)
            if not listeners:
                self._listeners.pop(subscription, None)

    def lost_touch(self) -> None:
        """Notifications may have been lost: every delivery checks the list again."""
        for listeners in list(self._listeners.values()):
            for session, delivery in listeners.items():
                delivery.lost_touch()
                session.has_work()

    async def serve(self, notification: Notification) -> None:
        """Hand a notified execution to all live deliveries; the others find it in their list."""
        execution = notification.execution
        due: list[tuple[Session, Delivery]] = []
        for subscription in notification.subscriptions:
            if not self._is_held(subscription):
                self._unheld(subscription)
            listeners = self._listeners.get(subscription, _NONE)
            due += [(session, delivery) for session, delivery in listeners.items() if delivery.notified(execution)]
        if not due:
            return
        subscriptions = {delivery.subscription for _, delivery in due}
        try:
            frames = await self._results.frames(notification.channel, execution, subscriptions)
        except ClusterError:
            frames = {}
        for session, delivery in due:
            if not delivery.is_due(execution):
                continue
            frame = frames.get(delivery.subscription)
            if frame is None:
                delivery.lost_touch()
                session.has_work()
            else:
                session.deliver(delivery, execution, frame)


# --- catching up


log = logging.getLogger("nearcast.gateway")


class CatchUp:
    """Lists, fetches and hands over what a session's deliveries lack, until all are live.

    There is one task per session, asleep while there is nothing to do. `Delivery` decides what it does and when.
    `back`: how many past executions of a channel a subscriber gets at most.
    """

    def __init__(self, session: Session, data: DataCluster, results: Results, back: int) -> None:
        self._session = session
        self._data = data
        self._results = results
        self._back = back
        self._work = asyncio.Event()

    def wake(self) -> None:
        """A delivery was added, lost touch, or has room again."""
        self._work.set()

    async def run(self) -> None:
        pauses = Pauses()
        while True:
            await self._work.wait()
            self._work.clear()
            try:
                while await self._round():
                    pauses.reset()
            except ClusterError as error:
                log.info("user %s cannot catch up yet: %s", self._session.user, error)
                await asyncio.sleep(pauses.next_s())
                self._work.set()
            except Exception:
                log.exception("catching up of user %s failed", self._session.user)
                self._session.end("the gateway failed to deliver and has logged the error: log in again")
                return

    async def _round(self) -> bool:
        """Whether any delivery wanted a list."""
        deliveries = list(self._session.deliveries.values())
        return any([await self._step(delivery) for delivery in deliveries])

    async def _step(self, delivery: Delivery) -> bool:
        """Fetch one list and hand over its executions; whether the delivery wanted one."""
        after = delivery.list_after()
        if after is None:
            return False
        try:
            found = await self._data.executions(delivery.subscription, after)
        except Gone as error:
            self._session.deliveries.pop(delivery.subscription, None)
            self._session.send(Refused(None, f"subscription {delivery.subscription} has ended: {error}"))
            return True
        executions = [listed.execution for listed in found.executions]
        step = delivery.listed(executions, found.upto, found.oldest, self._back)
        if step.missed is not None:
            self._session.miss(delivery, *step.missed)
        if found.problem and delivery.state is DeliveryState.LIVE:  # it has all there is, and no more will come
            self._session.send(Refused(None, f"subscription {delivery.subscription} is set aside: {found.problem}"))
        for execution in step.executions:
            if not await self._hand_over(delivery, execution):
                break
        return True

    async def _hand_over(self, delivery: Delivery, execution: int) -> bool:
        """Whether to continue with the next one."""
        try:
            frames = await self._results.frames(delivery.channel, execution, [delivery.subscription])
        except Gone:
            return False  # removed since it was listed: the next list says so
        frame = frames[delivery.subscription]
        if frame is not None:
            return self._session.deliver(delivery, execution, frame)
        self._session.miss(delivery, delivery.position, execution)
        return True


# --- notifications


AWAY_S = 600.0  # after this long without an answer a cursor is not trusted


class NotificationLoop:
    """The long poll that learns which executions have results for the broker. `run` it until cancelled.

    Notifications are hints. A lost one is found in a list later, so the loop only has to say when some may have been
    lost: at the first cursor, and whenever the data cluster does not know our cursor.
    """

    def __init__(
        self, data: DataCluster, broker: str, listeners: Listeners, backend_subscriptions: BackendSubscriptions
    ) -> None:
        self._data = data
        self._broker = broker
        self._listeners = listeners
        self._backend_subscriptions = backend_subscriptions
        self._cursor: int | None = None
        self._heard_s = 0.0
        self.problem = "not connected yet"  # why no notifications come; empty if they do

    async def run(self) -> None:
        pauses = Pauses()
        while True:
            if self._now_s() - self._heard_s > AWAY_S:
                self._cursor = None  # results notified meanwhile may be gone by now: the lists say which
            try:
                await self._poll()
                self.problem = ""
                pauses.reset()
            except ClusterError as error:
                if not self.problem:
                    log.warning("no notifications: %s", error)
                self.problem = str(error)
                if isinstance(error, DataClusterRefused):  # it does not know us, or our cursor
                    self._cursor = None
                    self._backend_subscriptions.introduce_again()
                await asyncio.sleep(pauses.next_s())

    async def _poll(self) -> None:
        before = self._cursor
        answer = await self._data.notifications(self._broker, before)
        if before is None or answer.cursor < before:
            # The lists requested from now on include everything up to this cursor.
            self._listeners.lost_touch()
        self._cursor = answer.cursor
        self._heard_s = self._now_s()
        await asyncio.gather(*(self._serve(group) for group in _by_channel(answer.notifications)))

    async def _serve(self, notifications: Iterable[Notification]) -> None:
        """Serve the executions of one channel one after another."""
        for notification in notifications:
            await self._listeners.serve(notification)

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()


def _by_channel(notifications: Iterable[Notification]) -> Iterable[list[Notification]]:
    groups: dict[str, list[Notification]] = {}
    for notification in notifications:
        groups.setdefault(notification.channel, []).append(notification)
    return groups.values()
