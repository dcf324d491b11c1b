"""The backend subscriptions that this broker holds at the data cluster, and which users share them.

Identical frontend subscriptions of a gateway's users are one subscription of its broker (`Sharing`): the first user
attaches it at the data cluster, and the last one to leave releases it. A user who is offline still holds what is kept
for her.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import msgspec

from nearcast.errors import ClusterError, Refused
from nearcast.gateway.data_cluster import DataCluster, DataClusterFailed, DataClusterRefused, Gone, Granted, Wanted
from nearcast.runtime.workers import Pauses

log = logging.getLogger("nearcast.gateway")

BATCH = 500  # subscriptions in one request
WAITING_MAX = 20_000  # requests that wait for the data cluster; more are refused
WAITING_BYTES_MAX = 16 << 20  # of their parameters

Hold = Callable[[str], None]


class _Waiting(NamedTuple):
    """A request that the data cluster has not answered."""

    wanted: Wanted
    bytes: int
    hold: Hold
    future: asyncio.Future[Granted]


# --- held at the data cluster


class BackendSubscriptions:
    """Attaches and releases backend subscriptions at the data cluster.

    One worker makes all changes, one after another. So the release of a subscription that has no holder any more cannot
    cross with a new user's attachment of the same. Requests that wait together are sent together. If they are refused
    they are sent in halves, so that one bad request does not affect others. While the data cluster is away the worker
    keeps trying, and requests wait, up to a limit; a request whose owner has left is forgotten.

    `is_held(subscription)`: whether a user of this gateway holds it; asked before it is released.
    """

    def __init__(self, data: DataCluster, broker: str, url: str, is_held: Callable[[str], bool]) -> None:
        self._data = data
        self._broker = broker
        self._url = url
        self._is_held = is_held
        self._attached: dict[str, Wanted] = {}
        self._waiting: dict[asyncio.Future[Granted], _Waiting] = {}
        self._waiting_bytes = 0
        self._unheld: set[str] = set()
        self._introduced = False
        self._work = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Requests that the data cluster has not answered."""
        return len(self._waiting)

    def has(self, subscription: str) -> bool:
        return subscription in self._attached

    def restore(self, subscription: str, wanted: Wanted) -> None:
        """Add what this broker held before it started. It is sent to the data cluster again, which changes nothing."""
        self._attached[subscription] = wanted

    def attach(self, wanted: Wanted, hold: Hold) -> asyncio.Future[Granted]:
        """Ask for a subscription. `hold` is called with its id before anything can release it again.

        To stop waiting, cancel the future. Refused: too many wait already.
        """
        size = len(msgspec.json.encode(wanted))
        if len(self._waiting) >= WAITING_MAX or self._waiting_bytes + size > WAITING_BYTES_MAX:
            raise Refused(f"{len(self._waiting)} subscriptions are waiting for the data cluster: try again later")
        future: asyncio.Future[Granted] = asyncio.get_running_loop().create_future()
        self._waiting[future] = _Waiting(wanted, size, hold, future)
        self._waiting_bytes += size
        future.add_done_callback(self._forget)
        self._work.set()
        return future

    def _forget(self, future: asyncio.Future[Granted]) -> None:
        waiting = self._waiting.pop(future, None)
        if waiting is not None:
            self._waiting_bytes -= waiting.bytes

    def release(self, subscription: str) -> None:
        """It may have no holder any more: the worker checks, and unsubscribes."""
        self._unheld.add(subscription)
        self._work.set()

    def introduce_again(self) -> None:
        """The data cluster does not know this broker."""
        self._introduced = False
        self._work.set()

    def give_up(self) -> None:
        """The gateway stops: no request is answered any more."""
        for future in list(self._waiting):
            future.cancel()

    # --- the worker

    async def run(self) -> None:
        """Runs until cancelled."""
        pauses = Pauses()
        self._work.set()
        while True:
            await self._work.wait()
            self._work.clear()
            try:
                await self._do_all()
                pauses.reset()
            except ClusterError as error:
                log.warning("%s", error)
                await asyncio.sleep(pauses.next_s())
                self._work.set()

    async def _do_all(self) -> None:
        if not self._introduced:
            await self._data.put_broker(self._broker, self._url)
            held = list(self._attached.values())
            for first in range(0, len(held), BATCH):
                for granted in await self._ask(held[first : first + BATCH]):
                    if granted.problem:
                        log.warning("a subscription of this broker could not be restored: %s", granted.problem)
            self._introduced = True
        while self._waiting or self._unheld:
            await self._attach_some()
            await self._release_all()

    async def _attach_some(self) -> None:
        batch = list(itertools.islice(self._waiting.values(), BATCH))
        if not batch:
            return
        try:
            granted = await self._ask([waiting.wanted for waiting in batch])
        except Gone:
            self._introduced = False  # it does not know this broker
            raise
        for waiting, answer in zip(batch, granted, strict=True):
            if answer.subscription:
                self._attached[answer.subscription] = waiting.wanted
            if not waiting.future.done():
                if answer.subscription:
                    waiting.hold(answer.subscription)
                self._forget(waiting.future)
                waiting.future.set_result(answer)
            elif answer.subscription:
                self._unheld.add(answer.subscription)  # the user who asked has left

    async def _ask(self, wanted: Sequence[Wanted]) -> list[Granted]:
        """An answer for each; requests that are refused together are sent again in halves."""
        try:
            return await self._data.subscribe(self._broker, wanted)
        except Gone:
            raise
        except (DataClusterRefused, DataClusterFailed) as error:
            if len(wanted) == 1:
                return [Granted(problem=str(error), hint="change the parameters, or try again later")]
        half = len(wanted) // 2
        return await self._ask(wanted[:half]) + await self._ask(wanted[half:])

    async def _release_all(self) -> None:
        for subscription in list(self._unheld):
            if not self._is_held(subscription):
                self._attached.pop(subscription, None)  # first: a user who wants it later must ask for it again
                with contextlib.suppress(DataClusterRefused):  # it has ended already
                    await self._data.unsubscribe(self._broker, subscription)
            self._unheld.discard(subscription)


# --- shared by users


_NOBODY: frozenset[str] = frozenset()


class Sharing:
    """Users by backend subscription, and the other way round."""

    def __init__(self) -> None:
        self._users: dict[str, set[str]] = {}
        self._held: dict[str, set[str]] = {}

    def hold(self, user: str, subscription: str) -> None:
        self._users.setdefault(subscription, set()).add(user)
        self._held.setdefault(user, set()).add(subscription)

    def let_go(self, user: str, subscription: str) -> bool:
        """Whether it had holders and now has none."""
        users = self._users.get(subscription, set())
        if user not in users:
            return False
        users.discard(user)
        held = self._held[user]
        held.discard(subscription)
        if not held:
            del self._held[user]
        if not users:
            del self._users[subscription]
        return not users

    def is_held(self, subscription: str) -> bool:
        return subscription in self._users

    def held_by(self, user: str) -> Iterable[str]:
        return self._held.get(user, _NOBODY)

    @property
    def subscriptions(self) -> Iterable[str]:
        return self._users.keys()

    @property
    def users(self) -> Iterable[str]:
        return self._held.keys()
