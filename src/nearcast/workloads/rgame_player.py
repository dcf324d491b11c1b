"""One live player of RGame: it attaches to the tile it is in, publishes there, and waits for its own updates to return.

A player that enters another tile attaches there first, then publishes there, and leaves the old tile an update later.
So its own updates come back to it wherever it goes.
"""

from __future__ import annotations

import asyncio
import struct
from array import array
from dataclasses import dataclass, field

from nearcast.core.message import Event, Gap, Interrupted, Message
from nearcast.errors import ClusterError
from nearcast.runtime.client import Client
from nearcast.runtime.subscription import Subscription

READ_EVERY_S = 0.02  # mailboxes are emptied so often: messages carry the time they came
RETURN_S = 2.0  # how long a leaving player waits for its last updates: more than T_gap
_STAMP = struct.Struct("!I")  # a payload begins with the player's number


@dataclass(slots=True)
class Tally:
    """What all players together did and saw."""

    updates: int = 0  # published and acknowledged
    refused: int = 0  # by the cluster: they may arrive or not
    deliveries: int = 0
    switches: int = 0  # of tiles
    missed: int = 0  # messages reported as Gap
    interruptions: int = 0
    responses_s: array[float] = field(default_factory=lambda: array("d"))  # of own updates that came back


class Player:
    """`tile`, the topic it is in, is set by the game. `leaving` ends it after its next update."""

    def __init__(self, number: int, tile: str, client: Client, tally: Tally) -> None:
        self.tile = tile
        self.leaving = False
        self._number = number
        self._client = client
        self._tally = tally
        self._subscriptions: list[Subscription] = []  # of the tile before, if just left, and of this one
        self._acknowledged = 0
        self._returned = 0

    async def play(self, update_s: float, payload_bytes: int) -> None:
        """One update every so many seconds."""
        payload = _STAMP.pack(self._number).ljust(payload_bytes, b".")
        listening: list[asyncio.Task[None]] = []
        await asyncio.sleep(update_s * (self._number * 0.618 % 1))  # not all players at the same moment
        here = ""
        try:
            while not self.leaving:
                if self.tile != here:
                    here = self.tile
                    listening.append(asyncio.create_task(self._listen(await self._enter(here))))
                await self._publish(here, payload)
                await asyncio.sleep(update_s)
                self._leave_all_but_last()
            await self._until_returned()
        finally:
            for subscription in self._subscriptions:
                subscription.close()
            await asyncio.gather(*listening)

    async def _enter(self, tile: str) -> Subscription:
        subscription = await self._client.subscribe(tile)
        self._tally.switches += bool(self._subscriptions)
        self._subscriptions.append(subscription)
        return subscription

    def _leave_all_but_last(self) -> None:
        while len(self._subscriptions) > 1:
            self._subscriptions.pop(0).close()

    async def _publish(self, tile: str, payload: bytes) -> None:
        try:
            await self._client.publish(tile, payload)
        except ClusterError:
            self._tally.refused += 1
        else:
            self._acknowledged += 1
            self._tally.updates += 1

    async def _until_returned(self) -> None:
        """What has not returned by then is missing from the tally."""
        for _ in range(round(RETURN_S / READ_EVERY_S)):
            if self._returned >= self._acknowledged:
                return
            await asyncio.sleep(READ_EVERY_S)

    # --- hearing

    async def _listen(self, subscription: Subscription) -> None:
        async for event in subscription:
            self._saw([event, *subscription.take()])
            await asyncio.sleep(READ_EVERY_S)

    def _saw(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Message):
                self._tally.deliveries += 1
                if event.publisher == self._client.client_id and _STAMP.unpack_from(event.payload)[0] == self._number:
                    self._returned += 1
                    self._tally.responses_s.append(event.latency_s)
            elif isinstance(event, Gap):
                self._tally.missed += event.count
            elif isinstance(event, Interrupted) and event.until_s is None:
                self._tally.interruptions += 1
