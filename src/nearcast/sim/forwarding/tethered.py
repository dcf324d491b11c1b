"""A machine with links to a fixed set of servers: what clients, dispatchers and the load balancer have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

from nearcast.core.effects import Effect
from nearcast.core.greeting import Credentials
from nearcast.core.link import Link
from nearcast.core.settings import DEFAULT_TIMING
from nearcast.core.tether import Tether

Action = Callable[[Link], None]


class Tethered:
    """Inputs: connected, received, lost, tick. Outputs: outgoing(), effects. Links are opened at the first tick.

    Connections never break in a run of the variant, only processes do; so nothing is done anew on a link that is opened
    a second time.
    """

    def __init__(self, urls: Mapping[str, str], rng: Random) -> None:
        self.effects: list[Effect] = []
        self.wall_offset_s = 0.0
        self._waiting: dict[str, list[Action]] = {server: [] for server in urls}
        self._tethers = {server: self._tether(server, url, rng) for server, url in urls.items()}

    def _tether(self, server: str, url: str, rng: Random) -> Tether:
        return Tether(
            server,
            url,
            Credentials(),
            lambda link, now_s: self._opened(server, link, now_s),
            timing=DEFAULT_TIMING,
            rng=rng,
        )

    def at(self, server: str, action: Action) -> None:
        """Do it on the link to this server, now or as soon as the link is open. Actions keep their order."""
        link = self._tethers[server].link
        if link is not None:
            action(link)
        else:
            self._waiting[server].append(action)

    def _opened(self, server: str, link: Link, now_s: float) -> None:
        waiting, self._waiting[server] = self._waiting[server], []
        for action in waiting:
            action(link)

    # --- inputs and outputs

    def connected(self, name: str, now_s: float) -> None:
        self._tethers[name].connected(now_s)

    def received(self, name: str, data: bytes, now_s: float) -> None:
        self._tethers[name].received(data, now_s, self.effects)

    def lost(self, name: str, reason: str, now_s: float) -> None:
        self._tethers[name].lost(reason, now_s)

    def tick(self, now_s: float) -> None:
        for tether in self._tethers.values():
            tether.tick(now_s, self.effects)

    def outgoing(self) -> list[tuple[str, bytes]]:
        return [(server, data) for server, tether in self._tethers.items() if (data := tether.take())]
