"""The controller machine: campaigns for leadership, and leads while it has it.

    follower --campaign won--> loading --journal read--> leader --campaign lost, commit refused, or late--> follower
                                  |                         ^
                                  +---> recovering ---------+   the store has lost data: see `recovery.py`

Two controllers never do harm: a commit needs the term of the newest leader, and so does every record on a server. But a
grant is not written anywhere, so what a leader says must depend on its own time: every input first checks that the
leadership still lasts (`_heed`). A process that was paused serves its sockets before its timers.

The leadership is renewed while the journal is read, however long that takes. A controller that cannot read it, is
refused a commit, or is shut down properly gives up the leadership, so that another one need not wait for it to expire.
Campaigns do not wait for each other: a store whose disk takes most of `leader_s` for each still renews the leadership
in time.
"""

from __future__ import annotations

from collections import Counter, deque
from enum import StrEnum
from random import Random
from typing import Any

import msgspec

from nearcast.core.controller.effects import Ask, Campaign, Leadership, LoadJournal, Resign, StoreEffect
from nearcast.core.controller.leader import Leader, LeaderSettings
from nearcast.core.controller.ledger import Ledger
from nearcast.core.controller.planner import PlanningSettings
from nearcast.core.controller.recovery import Recovery
from nearcast.core.controller.subscribers import CoordinationSettings
from nearcast.core.model.journal import Journal, Known, lost, read_entries
from nearcast.core.model.names import CONTROLLER_CHANNEL
from nearcast.core.model.settings import CLOCKS, DEFAULT_TIMING, NEVER_S, Timing
from nearcast.core.wire import bus
from nearcast.core.wire.backend import Credentials, ServerLink
from nearcast.core.wire.effects import Effect
from nearcast.core.wire.uplink import Uplink

CAMPAIGNS_MAX = 8  # in flight: answers to older ones come too late anyway
CLUSTERS_MAX = 8  # that a controller remembers; a bus has one, and perhaps agents started with a wrong store


class Role(StrEnum):
    """The state of a controller; the module's docstring shows how it changes."""

    FOLLOWER = "follower"
    LOADING = "loading"
    RECOVERING = "recovering"
    LEADER = "leader"


class Controller:
    """Inputs: connected, received, lost, tick, retire, and answers of the store, the policy and the balancer.

    Outputs: outgoing(), effects, store, questions, notes, alarms.
    """

    def __init__(
        self,
        name: str,
        store_url: str,
        rng: Random,
        *,
        credentials: Credentials | None = None,
        timing: Timing = DEFAULT_TIMING,
        planning: PlanningSettings | None = None,
        coordinating: CoordinationSettings | None = None,
    ) -> None:
        self.name = name
        self.timing = timing
        self.effects: list[Effect] = []
        self.store: list[StoreEffect] = []
        self.questions: list[Ask[Any]] = []  # for policies
        self.wall_offset_s = 0.0
        self.notes: list[str] = []
        self.alarms: list[str] = []  # what an operator must know
        self.bus = Uplink("bus", store_url, credentials or Credentials(), self._bus_open, timing=timing, rng=rng)
        self.role = Role.FOLLOWER
        self.leading: Leader | None = None
        self.recovery: Recovery | None = None
        self._store_url = store_url
        self._settings = LeaderSettings(
            timing=timing,
            planning=planning,
            coordinating=coordinating or CoordinationSettings(),
            dice=rng,
        )
        self._term = 0
        self._led = 0  # number of leaderships that have ended
        self._campaign_at_s = NEVER_S
        # In flight: for which candidate, since when, and how many commits we had seen before.
        self._campaigns: deque[tuple[str, float, int]] = deque()
        self._leader_until_s = NEVER_S
        self._seen = ("", 0.0)  # how another controller held the leadership, and when we first saw that
        self._journal = Journal()  # as far as it has been read
        self._known: dict[str, Known] = {}  # of each cluster, from agents and from our own leaderships
        self._answer_s = 0.0  # how long the store took for its last answer
        self._voices: dict[str, str] = {}  # broker -> the cluster that its agent knows
        self._terms_known = 0  # the highest term of any leader that anyone has heard

    @property
    def loss(self) -> str:
        """What the store has lost, until an operator has acknowledged it; empty if nothing, or if we follow."""
        if self.recovery is not None:
            return "the store has lost data: the journal is being rebuilt from what the brokers have"
        loss = self.leading.journal.loss if self.leading is not None else None
        return f"the store has lost data: {loss.text}" if loss is not None and not loss.acknowledged else ""

    @property
    def too_late(self) -> str:
        """Why no controller can lead although the store answers; empty if it answers in time."""
        limit_s = self.timing.leader_s
        if self._answer_s <= limit_s:
            return ""
        return (
            f"the store took {self._answer_s:.1f} s to answer, but a leader needs an answer within {limit_s:g} s:"
            " check its disk and the network to it, or give all controllers a longer --timer leader_s"
        )

    # --- inputs

    def connected(self, name: str, now_s: float) -> None:
        self._heed(now_s)
        self.bus.connected(now_s)

    def received(self, name: str, data: bytes, now_s: float) -> None:
        self._heed(now_s)
        self.bus.received(data, now_s, self.effects)

    def lost(self, name: str, reason: str, now_s: float) -> None:
        self._heed(now_s)
        self.bus.lost(reason, now_s)

    def campaigned(self, leadership: Leadership, now_s: float) -> None:
        """The store has answered the oldest campaign."""
        self._heed(now_s)
        term = leadership.term
        if leadership.held != self._seen[0]:
            self._seen = (leadership.held, now_s)
        candidate, sent_s, committed = self._campaigns.popleft()
        self._answer_s = now_s - sent_s
        if candidate != self._candidate or sent_s + self.timing.leader_s < now_s:
            return  # for a leadership that has ended, or answered too late
        if self.role is not Role.FOLLOWER and term != self._term:
            self._step_down("another controller leads" if term is None else "the store began a new term", now_s)
        elif self.role is not Role.FOLLOWER and leadership.version < committed:
            self._step_down("the store has lost commits", now_s)
        if term is None or candidate != self._candidate:
            return
        self._leader_until_s = sent_s + self.timing.leader_s
        if self.role is Role.FOLLOWER:
            self.role, self._term, self._journal = Role.LOADING, term, Journal()
            self.store.append(LoadJournal(term))

    def not_campaigned(self, now_s: float) -> None:
        """The store could not be asked. What it granted before lasts until it expires."""
        self._heed(now_s)
        self._campaigns.popleft()

    def read(self, term: int, entries: dict[str, bytes], now_s: float) -> None:
        """A part of the journal. It comes in parts, so that a long one does not delay renewing the leadership."""
        self._heed(now_s)
        if not self._loads(term):
            return
        try:
            read_entries(self._journal, entries)
        except (msgspec.DecodeError, UnicodeError) as error:
            self._step_down(f"the journal has an entry of another version, or a damaged one: {error}", now_s)

    def loaded(self, term: int, version: int, now_s: float) -> None:
        """The whole journal was read."""
        self._heed(now_s)
        if not self._loads(term):
            return
        journal, self._journal = self._journal, Journal()
        ledger = Ledger(version, journal, self._term)
        known = self._lost_by(journal, version)
        if known is None:
            self._lead(ledger, now_s)
            return
        self.role = Role.RECOVERING
        self.recovery = Recovery(
            ledger,
            known,
            timing=self.timing,
            store_url=self._store_url,
            wall_offset_s=self.wall_offset_s,
            now_s=now_s,
        )

    def not_loaded(self, term: int, reason: str, now_s: float) -> None:
        """The journal could not be read."""
        self._heed(now_s)
        if self._loads(term):
            self._step_down(f"the journal could not be read: {reason}", now_s)

    def committed(self, term: int, ok: bool, now_s: float) -> None:
        """The commit of this term is in the store; not `ok`: it was refused, or the outcome is unknown."""
        self._heed(now_s)
        ledger = self._ledger
        if ledger is None or term != self._term:
            return
        if not ok:
            self._step_down("a commit was refused, or the store did not answer it", now_s)
            return
        ledger.committed(now_s)
        if self.leading is None:
            self._lead(ledger, now_s)
            return
        self.leading.go_on(now_s)
        self._commit(now_s)

    def answered(self, number: int, answer: object, now_s: float) -> None:
        """A policy has decided; None if it failed. An answer for a former leader is ignored."""
        self._heed(now_s)
        if self.leading is not None:
            self.leading.questions.answered(number, answer, now_s)
            self.leading.go_on(now_s)
            self._commit(now_s)

    def tick(self, now_s: float) -> None:
        self._heed(now_s)
        self.bus.tick(now_s, self.effects)
        if now_s - self._campaign_at_s >= self.timing.leader_s / 4 and len(self._campaigns) < CAMPAIGNS_MAX:
            self._campaign_at_s = now_s
            committed = self._ledger.version if self._ledger is not None else 0
            self._campaigns.append((self._candidate, now_s, committed))
            self.store.append(Campaign(self._candidate, self._stale(now_s), self._terms_known))
        if self.recovery is not None:
            self.recovery.tick(now_s)
            self._raise_alarms(self.recovery)
            self._commit(now_s)
        if self.leading is not None:
            self.leading.tick(now_s)
            self._commit(now_s)
            self.questions += self.leading.questions.take()

    def retire(self, now_s: float) -> None:
        """The last input: the process is shutting down properly, and another controller should lead at once.

        The store sees the resignation after every campaign of ours, so none of them can win the leadership back.
        """
        if self.role is not Role.FOLLOWER or self._campaigns:
            self._step_down("it is shutting down", now_s)

    def outgoing(self) -> list[tuple[str, bytes]]:
        """What to write on the bus now. Without a bus, a leader drops its messages: orders are repeated."""
        speaker = self.leading.office if self.leading is not None else self.recovery
        if speaker is not None:
            link = self.bus.link
            for channel, payload in speaker.outbox:
                if link is not None:
                    link.tell(channel, payload)
            speaker.outbox.clear()
        if self.leading is not None:
            self.notes += self.leading.office.notes
            self.leading.office.notes.clear()
        data = self.bus.take()
        return [(self.bus.name, data)] if data else []

    # --- inside

    def _heed(self, now_s: float) -> None:
        """The gate of every input: once its time is over, a controller says nothing more as a leader."""
        if self.role is not Role.FOLLOWER and now_s > self._leader_until_s:
            self._step_down("the leadership was not renewed in time", now_s)

    def _stale(self, now_s: float) -> str:
        """How the leadership is held, if we have not seen it renewed for longer than a leader trusts itself."""
        held, since_s = self._seen
        trusted_s = max(self.timing.leader_s, _leader_s(held))
        return held if now_s - since_s > CLOCKS * trusted_s else ""

    def _loads(self, term: int) -> bool:
        """Whether we are waiting for an answer to the `LoadJournal` of this term."""
        return self.role is Role.LOADING and term == self._term

    def _bus_open(self, link: ServerLink, now_s: float) -> None:
        link.control[CONTROLLER_CHANNEL] = self._heard
        link.subscribe(CONTROLLER_CHANNEL)

    def _heard(self, payload: bytes, now_s: float) -> None:
        message = bus.decode_for_controller(payload)
        if isinstance(message, bus.Hello):
            self._learn(message, now_s)
        if message is not None and self.leading is not None:
            self.leading.heard(message, now_s)
            self.leading.go_on(now_s)
            self._commit(now_s)
        elif message is not None and self.recovery is not None:
            self.recovery.heard(message, now_s)
            self._raise_alarms(self.recovery)
            self._outranked(self.recovery.term_found, now_s)
            self._commit(now_s)

    def _raise_alarms(self, recovery: Recovery) -> None:
        alarms, recovery.alarms = recovery.alarms, []
        self.alarms += alarms

    def _learn(self, hello: bus.Hello, now_s: float) -> None:
        """Take note of what an agent knows, and load the journal again if that is more than it holds."""
        known = hello.known
        self._remember(known)
        if known.cluster:
            self._voices[hello.broker] = known.cluster
        self._outranked(known.term, now_s)
        if self.leading is not None and self.leading.lost(known):
            self._step_down("an agent knows more than the journal: the store has lost data", now_s)
        if self.recovery is not None and self.recovery.mistaken(self._lost_by(Journal(), 0)):
            self._step_down("most brokers belong to another cluster than the one being rebuilt", now_s)

    def _remember(self, known: Known) -> None:
        if known.cluster in self._known:
            self._known[known.cluster] = self._known[known.cluster].merged(known)
        elif known.cluster and len(self._known) < CLUSTERS_MAX:
            self._known[known.cluster] = known

    def _lost_by(self, journal: Journal, version: int) -> Known | None:
        """The cluster of which the journal has lost something: its own if affected, else that of the most brokers.

        One agent with a wrong store must not make strangers of all the others.
        """
        voices = Counter(self._voices.values())

        def claim(known: Known) -> tuple[bool, int]:
            return (known.cluster == journal.membership.cluster, voices[known.cluster])

        return max((known for known in self._known.values() if lost(known, journal, version)), key=claim, default=None)

    def _outranked(self, term: int, now_s: float) -> None:
        """Someone has heard of this term. No controller leads in a higher term while we lead, so the store lost it."""
        self._terms_known = max(self._terms_known, term)
        if self.role is not Role.FOLLOWER and term > self._term:
            self._step_down(f"an agent knows term {term}: the store has lost data, or another controller leads", now_s)

    @property
    def _ledger(self) -> Ledger | None:
        speaker = self.leading or self.recovery
        return speaker.ledger if speaker is not None else None

    def _commit(self, now_s: float) -> None:
        ledger = self._ledger
        if ledger is None or (self.leading is not None and self.leading.listens(now_s)):
            return
        commit = ledger.commit(now_s)
        if commit is not None:
            self.store.append(commit)

    def _lead(self, ledger: Ledger, now_s: float) -> None:
        recovery, self.recovery = self.recovery, None
        self.role = Role.LEADER
        self.notes.append(f"{self.name} leads in term {self._term}, journal version {ledger.version}")
        self.leading = Leader(
            ledger,
            leader=self.name,
            store_url=self._store_url,
            settings=self._settings,
            orders=recovery.orders if recovery is not None else None,
            wall_offset_s=self.wall_offset_s,
            now_s=now_s,
        )

    @property
    def _candidate(self) -> str:
        """A new candidate after every leadership: it gets a new term, so no order or answer is taken twice.

        It also tells the others how long this one trusts itself, which may be longer than they do.
        """
        return f"{self.name}.{self._led}@{self.timing.leader_s:g}"

    def _step_down(self, reason: str, now_s: float) -> None:
        self.store.append(Resign(self._candidate))
        if self.leading is not None:
            self._remember(self.leading.known)
        self._terms_known = max(self._terms_known, self._term)
        self._led += 1
        self._campaign_at_s = now_s  # let the others try first
        if self.role is not Role.FOLLOWER:
            self.notes.append(f"{self.name} no longer leads: {reason}")
        self.role, self.leading, self.recovery = Role.FOLLOWER, None, None
        self._journal = Journal()


def _leader_s(held: str) -> float:
    """How long the holder of the leadership trusts itself; 0 if its version does not say."""
    candidate, _, _ = held.rpartition("#")
    try:
        return float(candidate.rpartition("@")[2])
    except ValueError:
        return 0.0
