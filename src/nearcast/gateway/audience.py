"""The audience: which sessions listen to which backend subscription, and how a notified execution reaches them.

An execution is fetched once for all subscriptions somebody listens to, whatever the number of subscribers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from nearcast.errors import ClusterError
from nearcast.gateway.data_cluster import Notification
from nearcast.gateway.delivery import Delivery
from nearcast.gateway.results import Results
from nearcast.gateway.session import Session

_NONE: dict[Session, Delivery] = {}


class Audience:
    """Of one gateway. `unheld(subscription)` is told of a notification that no user here holds."""

    def __init__(self, results: Results, is_held: Callable[[str], bool], unheld: Callable[[str], None]) -> None:
        self._results = results
        self._is_held = is_held
        self._unheld = unheld
        self._listeners: dict[str, dict[Session, Delivery]] = {}

    def add(self, session: Session, delivery: Delivery) -> None:
        """The delivery begins by catching up, so nothing notified before is missed."""
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
        """Notifications may have been lost: everybody looks at the list again."""
        for listeners in list(self._listeners.values()):
            for session, delivery in listeners.items():
                delivery.lost_touch()
                session.has_work()

    async def serve(self, notification: Notification) -> None:
        """Hand a notified execution to all who are live; the others find it in their list."""
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
