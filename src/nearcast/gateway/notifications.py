"""Notifications: the long poll that tells a gateway which executions have results for its broker.

They are hints. One that is lost is found in a list later, so the loop's only duty is to say when some may be lost: at
the first cursor, and whenever the data cluster does not know the cursor we have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from nearcast.errors import ClusterError
from nearcast.gateway.audience import Audience
from nearcast.gateway.data_cluster import DataCluster, DataClusterRefused, Notification
from nearcast.gateway.holdings import Holdings
from nearcast.runtime.retrying import Pauses

log = logging.getLogger("nearcast.gateway")

AWAY_S = 600.0  # without an answer for so long a cursor is not trusted


class NotificationLoop:
    """Of one gateway; `run` until cancelled."""

    def __init__(self, data: DataCluster, broker: str, audience: Audience, holdings: Holdings) -> None:
        self._data = data
        self._broker = broker
        self._audience = audience
        self._holdings = holdings
        self._cursor: int | None = None
        self._heard_s = 0.0
        self.problem = "not connected yet"  # why no notifications come; empty if they do

    async def run(self) -> None:
        pauses = Pauses()
        while True:
            if self._now_s() - self._heard_s > AWAY_S:
                self._cursor = None  # the results notified meanwhile may be kept no longer: the lists tell
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
                    self._holdings.introduce_again()
                await asyncio.sleep(pauses.next_s())

    async def _poll(self) -> None:
        before = self._cursor
        answer = await self._data.notifications(self._broker, before)
        if before is None or answer.cursor < before:
            # The lists asked for from now on know everything up to this cursor.
            self._audience.lost_touch()
        self._cursor = answer.cursor
        self._heard_s = self._now_s()
        await asyncio.gather(*(self._serve(group) for group in _by_channel(answer.notifications)))

    async def _serve(self, notifications: Iterable[Notification]) -> None:
        """Executions of one channel, one after the other."""
        for notification in notifications:
            await self._audience.serve(notification)

    @staticmethod
    def _now_s() -> float:
        return asyncio.get_running_loop().time()


def _by_channel(notifications: Iterable[Notification]) -> Iterable[list[Notification]]:
    groups: dict[str, list[Notification]] = {}
    for notification in notifications:
        groups.setdefault(notification.channel, []).append(notification)
    return groups.values()
