"""An uplink: a link that is kept open to one fixed address, for agents and controllers.

Clients share one set of links with budgets and leases (`core/client/links.py`); an agent always needs just its server
and the bus.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random

from nearcast.core.model.settings import NEVER_S, Timing
from nearcast.core.wire.backend import Credentials, LinkRefused, unanswered
from nearcast.core.wire.effects import Connect, Disconnect, Effect
from nearcast.core.wire.valkey import ValkeyLink
from nearcast.errors import ClusterError

OnOpen = Callable[[ValkeyLink, float], None]


class Uplink:
    """One connection, opened again whenever it is lost."""

    def __init__(
        self, name: str, url: str, credentials: Credentials, on_open: OnOpen, *, timing: Timing, rng: Random
    ) -> None:
        self.name = name
        self.url = url
        self.link: ValkeyLink | None = None  # set while the connection is open and greeted
        self.problem = ""
        self.answered_s = NEVER_S  # when the newest probe was answered
        self._credentials = credentials
        self._on_open = on_open
        self.timing = timing
        self._rng = rng
        self._greeting: ValkeyLink | None = None
        self._connecting = False
        self._retry_at_s = NEVER_S
        self._probed_s = NEVER_S
        self._probing = False

    def connected(self, now_s: float) -> None:
        self._connecting = False
        self._greeting = link = ValkeyLink(self.name)
        self._probing, self._probed_s = True, now_s  # the greeting is a probe too
        link.greet(self.url, self._credentials, f"nc-{self.name}", partial(self._greeted, link))

    def _greeted(self, link: ValkeyLink, problem: ClusterError | None, now_s: float) -> None:
        if problem is not None:
            raise LinkRefused(str(problem))
        self.link, self._greeting = link, None
        self.problem = ""
        self._probed(now_s)
        self._on_open(link, now_s)

    def received(self, data: bytes, now_s: float, effects: list[Effect]) -> None:
        link = self.link or self._greeting
        if link is None:
            return
        try:
            link.feed(data, now_s)
        except LinkRefused as error:
            effects.append(Disconnect(self.name))
            self._greeting = None  # it was answered
            self.lost(str(error), now_s)

    def lost(self, reason: str, now_s: float) -> None:
        if self._greeting is not None:
            reason = unanswered(reason)
        self.link = self._greeting = None
        self._connecting = False
        self.problem = reason
        self._retry_at_s = now_s + self.timing.reconnect_min_s * (1 + self._rng.random())

    def tick(self, now_s: float, effects: list[Effect]) -> None:
        """Open the connection if it is closed; probe it if it is open; close it if it does not answer."""
        if self.link is None and self._greeting is None:
            if not self._connecting and now_s >= self._retry_at_s:
                self._connecting = True
                effects.append(Connect(self.name, self.url))
            return
        if self._probing:
            if now_s - self._probed_s > self.timing.lease_s:
                effects.append(Disconnect(self.name))
                self.lost("no answer", now_s)
        elif self.link is not None and now_s - self._probed_s >= self.timing.heartbeat_s / 2:
            self._probing, self._probed_s = True, now_s
            self.link.barrier(self._probed)

    def _probed(self, now_s: float) -> None:
        self._probing = False
        self.answered_s = now_s

    def take(self) -> bytes:
        link = self.link or self._greeting
        return link.take() if link is not None else b""
