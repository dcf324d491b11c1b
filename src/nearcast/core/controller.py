"""The controller machine: campaigns for leadership, and reigns while it has it.

    follower --campaign won--> loading --journal read--> leader --campaign lost, commit refused, or late--> follower

Two controllers never do harm: a commit needs the term of the newest leader, and so does every record on a server.
"""

from __future__ import annotations

from enum import StrEnum
from random import Random

from nearcast.core import bus
from nearcast.core.audience import Seats
from nearcast.core.backend import ServerLink
from nearcast.core.coordination import Coordinating
from nearcast.core.effects import Balance, Campaign, Effect, Load, Propose, StoreEffect
from nearcast.core.greeting import Credentials
from nearcast.core.ledger import Ledger
from nearcast.core.planner import Planning
from nearcast.core.proposal import Proposal
from nearcast.core.reign import Charter, Reign
from nearcast.core.settings import DEFAULT_TIMING, Timing
from nearcast.core.tether import Tether


class Role(StrEnum):
    FOLLOWER = "follower"
    LOADING = "loading"
    LEADER = "leader"


class Controller:
    """Inputs: connected, received, lost, campaigned, loaded, committed, tick. Outputs: outgoing(), effects, store."""

    def __init__(
        self,
        name: str,
        store_url: str,
        rng: Random,
        *,
        credentials: Credentials | None = None,
        timing: Timing = DEFAULT_TIMING,
        planning: Planning | None = None,
        coordinating: Coordinating | None = None,
    ) -> None:
        self.name = name
        self.timing = timing
        self.effects: list[Effect] = []
        self.store: list[StoreEffect] = []
        self.asked: list[Propose] = []  # of the policy; none without `planning`
        self.balances: list[Balance] = []  # for the balancer; none without one
        self.wall_offset_s = 0.0
        self.notes: list[str] = []
        self.bus = Tether("bus", store_url, credentials or Credentials(), self._bus_open, timing=timing, rng=rng)
        self.role = Role.FOLLOWER
        self.reign: Reign | None = None
        self._store_url = store_url
        self._charter = Charter(
            timing=timing,
            planning=planning,
            coordinating=coordinating or Coordinating(),
            dice=rng,
        )
        self._term = 0
        self._reigns = 0  # that have ended
        self._campaign_at_s = -1e9
        self._campaign_sent_s: float | None = None
        self._leader_until_s = -1e9

    # --- inputs

    def connected(self, name: str, now_s: float) -> None:
        self.bus.connected(now_s)

    def received(self, name: str, data: bytes, now_s: float) -> None:
        self.bus.received(data, now_s, self.effects)

    def lost(self, name: str, reason: str, now_s: float) -> None:
        self.bus.lost(reason, now_s)

    def campaigned(self, term: int | None, now_s: float) -> None:
        """The store has named the leader's term if it is us, None if it is another or could not be asked."""
        sent_s, self._campaign_sent_s = self._campaign_sent_s, None
        if term is None or sent_s is None:
            if self.role is not Role.FOLLOWER and now_s > self._leader_until_s:
                self._step_down("another controller leads, or the store does not answer")
            return
        if self.role is not Role.FOLLOWER and term != self._term:
            self._step_down("the store began a new term")
        self._leader_until_s = sent_s + self.timing.leader_s
        if self.role is Role.FOLLOWER:
            self.role, self._term = Role.LOADING, term
            self.store.append(Load())

    def loaded(self, version: int, entries: dict[str, bytes], now_s: float) -> None:
        if self.role is not Role.LOADING:
            return
        self.role = Role.LEADER
        self.notes.append(f"{self.name} leads in term {self._term}, journal version {version}")
        ledger = Ledger(version, entries, self._term)
        self.reign = Reign(
            ledger,
            leader=self.name,
            store_url=self._store_url,
            charter=self._charter,
            wall_offset_s=self.wall_offset_s,
            now_s=now_s,
        )

    def committed(self, ok: bool, now_s: float) -> None:
        if self.reign is None:
            return
        if not ok:
            self._step_down("a commit was refused")
            return
        self.reign.ledger.committed(now_s)
        self.reign.go_on(now_s)
        self._commit(now_s)

    def proposed(self, number: int, proposal: Proposal | None, now_s: float) -> None:
        """The policy has answered; None if it failed. An answer to a reign that has ended is not heard."""
        if self.reign is not None:
            self.reign.planner.proposed(number, proposal, now_s)
            self.reign.go_on(now_s)
            self._commit(now_s)

    def seated(self, number: int, seats: Seats | None, now_s: float) -> None:
        """The balancer has answered; None if it failed."""
        if self.reign is not None:
            self.reign.coordination.seated(number, seats, now_s)

    def tick(self, now_s: float) -> None:
        self.bus.tick(now_s, self.effects)
        if self._campaign_sent_s is None and now_s - self._campaign_at_s >= self.timing.leader_s / 4:
            self._campaign_at_s = self._campaign_sent_s = now_s
            self.store.append(Campaign(self._candidate))
        if self.role is not Role.FOLLOWER and now_s > self._leader_until_s:
            self._step_down("the leadership was not renewed in time")
        if self.reign is not None:
            self.reign.tick(now_s)
            self._commit(now_s)
            asked, self.reign.planner.asked = self.reign.planner.asked, []
            self.asked += asked
            balances, self.reign.coordination.asked = self.reign.coordination.asked, []
            self.balances += balances

    def outgoing(self) -> list[tuple[str, bytes]]:
        """What to write on the bus now. A leader without a bus drops what it would say: orders are repeated."""
        if self.reign is not None:
            link = self.bus.link
            for channel, payload in self.reign.told:
                if link is not None:
                    link.tell(channel, payload)
            self.reign.told.clear()
            self.notes += self.reign.notes
            self.reign.notes.clear()
        data = self.bus.take()
        return [(self.bus.name, data)] if data else []

    # --- inside

    def _bus_open(self, link: ServerLink, now_s: float) -> None:
        link.control[bus.CONTROLLER_CHANNEL] = self._heard
        link.subscribe(bus.CONTROLLER_CHANNEL)

    def _heard(self, payload: bytes, now_s: float) -> None:
        message = bus.decode_for_controller(payload)
        if message is not None and self.reign is not None:
            self.reign.heard(message, now_s)
            self.reign.go_on(now_s)
            self._commit(now_s)

    def _commit(self, now_s: float) -> None:
        commit = self.reign.ledger.commit(now_s) if self.reign is not None else None
        if commit is not None:
            self.store.append(commit)

    @property
    def _candidate(self) -> str:
        """Another one after every reign: who comes back gets a new term, so that no order or answer is taken twice."""
        return f"{self.name}.{self._reigns}"

    def _step_down(self, reason: str) -> None:
        self._reigns += 1
        self.notes.append(f"{self.name} no longer leads: {reason}")
        self.role, self.reign = Role.FOLLOWER, None
