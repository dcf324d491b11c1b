"""Catching up: what a session's deliveries lack is listed, fetched and handed over, until all are live.

One task per session, asleep while nothing is to do. What it does and when is decided by `Delivery`.
"""

from __future__ import annotations

import asyncio
import logging

from nearcast.errors import ClusterError
from nearcast.gateway.data_cluster import DataCluster, Gone
from nearcast.gateway.delivery import Delivery, State
from nearcast.gateway.frames import Refused
from nearcast.gateway.results import Results
from nearcast.gateway.session import Session
from nearcast.runtime.retrying import Pauses

log = logging.getLogger("nearcast.gateway")


class CatchUp:
    """Of one session. `back`: how many executions of a channel a subscriber gets at most."""

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
                self._session.end("the gateway failed to deliver, which its operator can see: log in again")
                return

    async def _round(self) -> bool:
        """Whether any delivery wanted a list."""
        deliveries = list(self._session.deliveries.values())
        return any([await self._step(delivery) for delivery in deliveries])

    async def _step(self, delivery: Delivery) -> bool:
        """One list, and what it has; whether the delivery wanted one."""
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
        if found.problem and delivery.state is State.LIVE:  # it has all there is, and waits for more in vain
            self._session.send(Refused(None, f"subscription {delivery.subscription} is set aside: {found.problem}"))
        for execution in step.executions:
            if not await self._hand_over(delivery, execution):
                break
        return True

    async def _hand_over(self, delivery: Delivery, execution: int) -> bool:
        """Whether to go on with the next one."""
        try:
            frames = await self._results.frames(delivery.channel, execution, [delivery.subscription])
        except Gone:
            return False  # removed since it was listed: the next list says so
        frame = frames[delivery.subscription]
        if frame is not None:
            return self._session.deliver(delivery, execution, frame)
        self._session.miss(delivery, delivery.position, execution)
        return True
