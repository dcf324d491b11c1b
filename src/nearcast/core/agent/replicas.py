"""The replicas of an agent's server: admitted, made to follow, and sealed when a life has ended (PROTOCOL "Logs").

The leader lists a broker's replicas in the membership before they may attach: so whoever has something of a life is
known when it ends. A replica that was sealed is left alone for as long as its life may be read from it.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from nearcast.core.model.logs import PartState
from nearcast.core.model.membership import Membership
from nearcast.core.model.settings import NEVER_S, Timing
from nearcast.core.wire import bus
from nearcast.core.wire.backend import Credentials
from nearcast.core.wire.effects import Disconnect, Effect
from nearcast.core.wire.replication import Admission, ReplicaStatus, ReplicationLink
from nearcast.core.wire.uplink import Uplink

if TYPE_CHECKING:
    from collections.abc import Callable

    from nearcast.core.agent.machine import Identity
    from nearcast.core.wire.backend import AgentLink

FORGOTTEN_S = 20.0  # a replica of another broker is left when no order has named it for so long


class Replicas:
    """Inputs: those of its uplinks, tick, seal. It works on the agent's own server through the link given to `tick`."""

    def __init__(self, identity: Identity, credentials: Credentials, timing: Timing, rng: Random) -> None:
        self.uplinks: dict[str, Uplink] = {}  # by name
        self.runs: dict[str, str] = {}  # of our own replicas that have answered: URL -> run
        self.problem = ""
        self.timing = timing
        self._broker = identity.broker
        self._url = identity.url
        self._replicas = identity.replicas
        self._credentials = credentials
        self._rng = rng
        self._passwords: dict[str, str] = {}  # by life; the last one only
        self._wanted_s: dict[str, float] = {}  # uplink -> when it was last needed
        self._admitted: tuple[AgentLink, Admission] | None = None  # on this connection
        self._looked_s = NEVER_S

    # --- the server's own replicas

    def tick(
        self, link: AgentLink | None, run_id: str, membership: Membership, now_s: float, effects: list[Effect]
    ) -> None:
        """`link`: to the agent's own server, while it works there."""
        for name, uplink in list(self.uplinks.items()):
            if now_s - self._wanted_s[name] > FORGOTTEN_S:
                del self.uplinks[name]
                effects.append(Disconnect(name))
            else:
                uplink.tick(now_s, effects)
        if now_s - self._looked_s >= self.timing.heartbeat_s:
            self._looked_s = now_s
            admission = self._admitted_by(link, run_id, membership)
            for url in self._replicas:
                self._look_after(url, admission, membership, now_s)

    def _admitted_by(self, link: AgentLink | None, run_id: str, membership: Membership) -> Admission | None:
        """What replicas need to follow our server; None if they must not, or not yet."""
        info = membership.brokers.get(self._broker)
        if link is None or info is None or info.admits != run_id:
            return None
        admission = self._admission(run_id, membership.life(self._broker))
        if self._admitted == (link, admission):
            return admission
        link.admit(admission, partial(self._admission_answered, link, admission))
        return None

    def _admission(self, run_id: str, life: str) -> Admission:
        """With a new password for each life: a replica of an earlier one cannot come back by itself."""
        if life not in self._passwords:
            self._passwords = {life: f"{self._rng.getrandbits(128):032x}"}
        return Admission(run_id, life, self._url, self._passwords[life])

    def _admission_answered(self, link: AgentLink, admission: Admission, wrong: str, now_s: float) -> None:
        self.problem = f"replicas cannot be admitted ({wrong}): give the agent's user the rights" if wrong else ""
        if not wrong:
            self._admitted = (link, admission)
            self._looked_s = NEVER_S

    def _look_after(self, url: str, admission: Admission | None, membership: Membership, now_s: float) -> None:
        link = self._reach(url, now_s).link
        if link is not None:
            link.look_at_replica(partial(self._looked, url, link, admission, membership))

    def _looked(
        self,
        url: str,
        link: ReplicationLink,
        admission: Admission | None,
        membership: Membership,
        status: ReplicaStatus,
        now_s: float,
    ) -> None:
        self.runs[url] = status.run_id
        if admission is None or url not in membership.brokers[self._broker].replicas:
            link.leave_replica()
            return
        follows = status.follows == admission.address and status.in_step
        if follows or _is_held(status.sealed, url, membership, admission.life):
            link.leave_replica()
        else:
            link.follow(admission)

    # --- orders

    def seal(self, order: bus.Seal, answer: Callable[[bus.Answer], None], now_s: float) -> None:
        """Without a connection yet, nothing happens: the order is repeated."""
        link = self._reach(order.url, now_s).link
        if link is not None:
            link.seal(order.life, lambda sealed, _: answer(bus.Answer(self._broker, order.order, sealed=sealed)))

    def _reach(self, url: str, now_s: float) -> Uplink:
        name = f"replica-{url}"
        self._wanted_s[name] = now_s
        if name not in self.uplinks:
            self.uplinks[name] = Uplink(
                name, url, self._credentials, lambda link, at_s: None, timing=self.timing, rng=self._rng
            )
        return self.uplinks[name]


def _is_held(sealed: str, url: str, membership: Membership, life: str) -> bool:
    """Whether a replica must stay as it is. If it was sealed for the present life, somebody knows more than we do."""
    former = membership.former_life(sealed)
    if not sealed or former is None:
        return sealed == life
    return former.state is PartState.SEALING or (former.state is PartState.HELD and former.url == url)
