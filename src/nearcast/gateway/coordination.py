"""The gateway's side of coordination: it reports who is online, asks on behalf of users, and passes on orders to move.

It reports every two seconds, and half a second after each order to move, so that the next wave of moves need not wait.
A lost report has no other effect than a late one. While the controller or the store's server is away, sessions
continue; only users that ask for a gateway have to wait.

Topics count like backend subscriptions if the gateway lists them among what a user wants: a gateway receives a topic
once and delivers it to each of its users, which is what the policy's loads are made of.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from nearcast.core.model.names import CONTROLLER_CHANNEL, GATEWAY_CHANNEL
from nearcast.core.wire import bus
from nearcast.core.wire.bus import REPORT_S
from nearcast.errors import NearcastError, Refused, UsageError
from nearcast.runtime.console import Inquiry
from nearcast.runtime.requester import Requester
from nearcast.runtime.workers import Troubles, Workers

MOVING_REPORT_S = 0.5  # after an order: by then most users have moved
ASK_S = 10.0  # for an answer of the controller; a new one leads within about two seconds, and listens for four

log = logging.getLogger("nearcast.gateway")


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True):
    """Where a gateway is: its site, and its position in degrees if that is known."""

    site: str = "local"
    latitude: float | None = None
    longitude: float | None = None

    def __post_init__(self) -> None:
        if (self.latitude is None) != (self.longitude is None):
            raise UsageError("a position needs both latitude and longitude: give the other one too")
        if not -90 <= (self.latitude or 0.0) <= 90 or not -180 <= (self.longitude or 0.0) <= 180:
            raise UsageError("latitude goes from -90 to 90 degrees, longitude from -180 to 180")


class Served(Protocol):
    """What the controller asks about a gateway, and of it."""

    broker: str
    url: str

    def online(self) -> dict[str, Sequence[str]]:
        """The users with a session here, and the subscriptions of each."""
        ...

    def order_move(self, user: str, broker: str, url: str) -> bool:
        """Tell the user's session to go to another gateway. False: it has no session here."""
        ...

    async def rates(self) -> dict[str, float]:
        """Bytes per second of each subscription."""
        ...


class BusCoordination:
    """Coordination over the store's server. A gateway starts it when it serves, and stops it before it ends."""

    def __init__(self, store_url: str, whereabouts: Whereabouts) -> None:
        self._requester = Requester(store_url)
        self._assignments = Inquiry(self._requester, bus.decode_assignment)
        self._whereabouts = whereabouts
        self._gateway: Served | None = None
        self.workers = Workers(Troubles(log))
        self._rates: dict[str, float] = {}
        self._ordered = asyncio.Event()
        self._term = 0

    async def start(self, gateway: Served) -> None:
        self._gateway = gateway
        self.workers.start("reports", self._report_on)
        self.workers.start("rates", self._measure)

    async def stop(self) -> None:
        await self.workers.stop()
        await self._requester.close()

    # --- users

    async def register(self, user: str) -> None:
        """registeruser: returns if the user may have this name; raises Refused, which says why not."""
        await self._ask(lambda request: bus.RegisterUser(request, user))

    async def request(
        self,
        user: str,
        latitude: float | None = None,
        longitude: float | None = None,
        round_trips_s: Mapping[str, float] | None = None,
        *,
        home: str = "",
    ) -> tuple[str, str]:
        """requestbroker: broker and URL of the gateway that serves the user. `home`: what the directory says."""
        assignment = await self._ask(
            lambda request: bus.RequestBroker(request, user, latitude, longitude, home, dict(round_trips_s or {}))
        )
        return assignment.broker, assignment.url

    async def _ask(self, make: Callable[[str], bus.RegisterUser | bus.RequestBroker]) -> bus.Assignment:
        assignment = await self._assignments.ask(make, ASK_S)
        if assignment.problem:
            raise Refused(assignment.problem)
        return assignment

    # --- reports

    async def _report_on(self) -> None:
        listening = False
        while True:
            try:
                if not listening:
                    await self._listen()
                    listening = True  # also on connections opened after this one
                await self._report()
            except NearcastError as error:
                log.warning("no report reaches the controller: %s", error)
            self._ordered.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(REPORT_S):
                    await self._ordered.wait()
                await asyncio.sleep(MOVING_REPORT_S)

    async def _measure(self) -> None:
        """Separate from the reports, which must not wait for the data cluster. While it is away, old rates apply."""
        assert self._gateway is not None
        while True:
            with contextlib.suppress(NearcastError):
                self._rates = await self._gateway.rates()
            await asyncio.sleep(REPORT_S)

    async def _listen(self) -> None:
        assert self._gateway is not None
        await self._assignments.open()
        await self._requester.listen(GATEWAY_CHANNEL + self._gateway.broker.encode(), self._heard)

    async def _report(self) -> None:
        gateway = self._gateway
        assert gateway is not None
        where = self._whereabouts
        online = {user: tuple(wanted) for user, wanted in gateway.online().items()}
        report = bus.GatewayReport(
            gateway.broker, gateway.url, where.site, where.latitude, where.longitude, online, self._rates
        )
        await self._requester.ask("PUBLISH", CONTROLLER_CHANNEL, bus.encode(report))

    # --- orders

    def _heard(self, payload: bytes) -> None:
        order = bus.decode_for_gateway(payload)
        if order is None or order.term < self._term or self._gateway is None:
            return
        self._term = order.term
        moved = [self._gateway.order_move(user, broker, url) for user, (broker, url) in order.moves.items()]
        # The controller waits to hear that a user has left, so report even if the user is no longer here.
        log.info("the controller moves %d subscribers, of which %d are here", len(moved), sum(moved))
        self._ordered.set()
