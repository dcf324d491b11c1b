"""Members: which brokers there are, which are alive, and which are joining (PROTOCOL, controller rules 6-8).

A broker joins in steps. At every tick they are derived again from what its hellos say and what the journal holds:

    reset -> records and membership installed -> ready key set -> pattern subscribers there -> in the ring

A broker without a grant for T_dead, or whose process was seen to end, is given up: its topics are moved by force, and
if it comes back it joins as if it were new. `departures.py` handles brokers that are drained, `handover.py` changes of
the ring.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.controller.handover import Handover, Restoring
from nearcast.core.controller.lives import Lives
from nearcast.core.controller.office import LIVE
from nearcast.core.controller.timers import Agreement
from nearcast.core.model.journal import (
    LOSS_KEY,
    MEMBERSHIP_KEY,
    BrokerEntry,
    BrokerState,
    Entry,
    broker_key,
    records_for,
)
from nearcast.core.model.membership import BrokerInfo, Membership
from nearcast.core.model.settings import NEVER_S
from nearcast.core.wire import bus

if TYPE_CHECKING:
    from nearcast.core.controller.moves import Moves
    from nearcast.core.controller.office import Office, Roster


# A broker that a leader has never heard may know of commits that the store has lost and no one else knows. When it is
# given up, versions continue above everything that can have followed from those. There is room for a million steps.
UNHEARD_STEP = 1 << 12


class Members:
    """Admits brokers, grants leases, gives brokers up, and changes the ring."""

    def __init__(self, office: Office, roster: Roster, moves: Moves, now_s: float) -> None:
        self._office = office
        self._ledger, self._orders, self._timing = office.ledger, office.orders, office.timing
        self._roster = roster
        self._moves = moves
        self._restoring = Restoring(office.orders, office.term)
        self._hellos: dict[str, bus.Hello] = {}
        self._heard_s: dict[str, float] = {}
        self._since_s = now_s
        # The leader before us may have granted a moment ago: count from now.
        self._granted_s = dict.fromkeys(office.journal.brokers, now_s)
        self._reset: set[tuple[str, str]] = set()  # (broker, run id) that were reset under this leader
        self._restored: set[tuple[str, str]] = set()  # those with all their records installed
        # (broker, version it joined with) -> brokers whose pattern subscribers are all attached to it too
        self._attended: dict[tuple[str, int], set[str]] = {}
        self._joining_since_s: dict[str, float] = {}
        self._lives = Lives(office.ledger, roster)
        self._handover = Handover(office, roster, self._restoring, moves.evacuate)
        self.agreement = Agreement(office)
        # Runs whose records are complete but may differ from what the journal wants: see `recovery.py`.
        loss = office.journal.loss
        self._doubted = {
            (name, entry.run_id)
            for name, entry in office.journal.brokers.items()
            if entry.state in LIVE and loss is not None and not loss.verified
        }

    # --- questions from other parts

    def all_heard(self, now_s: float) -> bool:
        """Whether every broker expected to be alive was heard under our lead, or would have been given up by now."""
        expected = [name for name, entry in self._ledger.journal.brokers.items() if entry.state in LIVE]
        return now_s - self._since_s > self.agreement.dead_s or all(name in self._heard_s for name in expected)

    def granted_lately(self, broker: str, now_s: float) -> bool:
        return now_s - self._granted_s.get(broker, NEVER_S) < self._timing.lease_s

    # --- hellos

    def hello(self, hello: bus.Hello, now_s: float) -> None:
        name = hello.broker
        entry = self._ledger.journal.brokers.get(name)
        refusal = self._refusal(hello, entry, now_s)
        if refusal is not None:
            self._office.tell(name, hello.agent, refusal)
            return
        self._hellos[name], self._heard_s[name] = hello, now_s
        if self._ledger.pending(broker_key(name)):
            return
        if entry is None or entry.state not in LIVE:
            if hello.answering and self._welcome(hello, entry):
                self._admit(hello, entry, now_s)
        elif hello.dead:
            if hello.run_id == entry.run_id:  # otherwise a late report of an earlier run's end
                self._give_up(name, now_s)
        elif hello.answering and (hello.run_id, hello.url) != (entry.run_id, entry.url):
            self._restart(name, entry, hello)
        elif hello.answering:
            self._granted_s[name] = now_s
            if self._roster.carries(name) or self._introduced(name):
                self._office.tell(name, hello.agent, bus.Grant(self._ledger.term, hello.beat, hello.run_id))

    def _introduced(self, name: str) -> bool:
        """Whether a joining broker's own server tells clients that it is a new one.

        A lease before that would be mistaken for one of the former broker, and validate what that ran after its end.
        """
        return self._roster.informed(name) and name in self._ledger.journal.membership.brokers

    def _refusal(self, hello: bus.Hello, entry: BrokerEntry | None, now_s: float) -> bus.Refusal | None:
        """Why this agent is not what it claims to be: one name, one server, one agent at a time (rule 11)."""
        for other, theirs in self._ledger.journal.brokers.items():
            if other != hello.broker and theirs.state in LIVE and hello.run_id and _same_server(hello, theirs):
                reason = (
                    f"the server at {hello.url} belongs to broker {other}: start the agent of {hello.broker} with its"
                    f" own server, or take {other} out of the cluster first"
                )
                final = hello.run_id == theirs.run_id
                return bus.Refusal(self._ledger.term, reason, self._heard_now(other, now_s), final)
        cluster, known = self._ledger.journal.membership.cluster, hello.known.cluster
        if cluster and known and known != cluster and hello.known.store != self._office.store_url:
            reason = (
                f"the server at {hello.url} belongs to another cluster ({known}) than this store ({cluster}): start the"
                " agent with that cluster's store; or, if the server should join this cluster, stop the agent, empty"
                " the server (FLUSHALL), and start the agent again"
            )
            return bus.Refusal(self._ledger.term, reason, other_heard=False, final=False)
        silent_s = self._silent_s(hello.broker, now_s)
        if entry is None or entry.state not in LIVE or silent_s > self._patience_s(hello, entry):
            return None
        reason = (
            f"broker {hello.broker} has another agent, with the server at {entry.url}: start this agent under another"
            " name, or stop the other agent first"
        )
        return bus.Refusal(self._ledger.term, reason, self._heard_now(hello.broker, now_s), final=False)

    def _patience_s(self, hello: bus.Hello, entry: BrokerEntry) -> float:
        """How long a broker's agent must have been silent before this one replaces it; below 0: never.

        On the same server agents take turns by themselves (`core/agent/claim.py`). If the server is a different one, no
        client may count what was granted for the first; if clients find it elsewhere, the first must count as fenced.
        """
        known = self._hellos.get(hello.broker)
        if hello.url != entry.url:
            return self.agreement.dead_s
        if hello.run_id in ("", entry.run_id) or (known is not None and known.agent == hello.agent):
            return -1.0
        return self.agreement.lease_over_s

    def _silent_s(self, broker: str, now_s: float) -> float:
        return now_s - self._heard_s.get(broker, self._since_s)

    def _heard_now(self, broker: str, now_s: float) -> bool:
        return now_s - self._heard_s.get(broker, NEVER_S) <= 2 * self._timing.heartbeat_s

    def heard_now(self, now_s: float) -> list[str]:
        """The brokers whose agents are there, whatever has become of their servers."""
        return [name for name in self._hellos if self._heard_now(name, now_s)]

    def last_hello(self, broker: str) -> bus.Hello | None:
        return self._hellos.get(broker)

    def agent_of(self, broker: str) -> int | None:
        """The agent that speaks for the broker, if it has been heard."""
        hello = self._hellos.get(broker)
        return hello.agent if hello is not None else None

    def heard_lately(self, broker: str, run_id: str, now_s: float) -> bool:
        """Whether this run of a broker has said hello within the last T_dead."""
        hello, at_s = self._hellos.get(broker), self._heard_s.get(broker, NEVER_S)
        return hello is not None and hello.run_id == run_id and now_s - at_s < self._timing.dead_s

    def _welcome(self, hello: bus.Hello, entry: BrokerEntry | None) -> bool:
        """Whether the broker may join. One that was drained and has left may not return in the same run."""
        return entry is None or entry.state is BrokerState.DEAD or hello.run_id != entry.run_id

    def _admit(self, hello: bus.Hello, before: BrokerEntry | None, now_s: float) -> None:
        entry = BrokerEntry(
            hello.url,
            hello.site,
            hello.run_id,
            BrokerState.JOINING,
            hello.capacity_bytes_per_s or (before.capacity_bytes_per_s if before is not None else 0.0),
            before is not None and before.rented,
            messages_high_per_s=before.messages_high_per_s if before is not None else 0.0,
        )
        self._granted_s[hello.broker] = now_s
        self._ledger.write_broker(hello.broker, entry)

    def _restart(self, name: str, entry: BrokerEntry, hello: bus.Hello) -> None:
        """The server was restarted with an empty memory: give it its records back, and announce where it is."""
        self._roster.membership_at.pop(name, None)
        self._restoring.forget(name)
        self._moves.forget(name)
        changed = msgspec.structs.replace(entry, run_id=hello.run_id, url=hello.url)
        changes: dict[str, Entry] = {broker_key(name): changed}
        membership = self._ledger.membership()
        info = membership.brokers.get(name)
        if info is not None and (info.url != hello.url or membership.logs):
            began = membership.version + 1
            info = msgspec.structs.replace(info, url=hello.url, began=began, replicas={}, admits="")
            brokers = {**membership.brokers, name: info}
            changes[MEMBERSHIP_KEY] = self.next_membership(membership, brokers, membership.ring)
        self._ledger.write(changes)

    # --- giving up

    def _give_up(self, name: str, now_s: float) -> None:
        """Fence a broker by force, if there is another one to take its topics."""
        entry = self._ledger.journal.brokers[name]
        membership = self._ledger.membership()
        others = self._successors(name) if entry.state is not BrokerState.JOINING else {}
        if entry.state is not BrokerState.JOINING and not others:
            return
        changes: dict[str, Entry] = {broker_key(name): msgspec.structs.replace(entry, state=BrokerState.DEAD)}
        changes |= {
            broker_key(other): stays for other, stays in others.items() if stays.state is not self._state(other)
        }
        brokers = {broker: info for broker, info in membership.brokers.items() if broker != name}
        ring = tuple(broker for broker in membership.ring if broker != name) or tuple(sorted(others))
        step = 1 if name in self._heard_s else UNHEARD_STEP
        changes[MEMBERSHIP_KEY] = self.next_membership(membership, brokers, ring, step)
        self._roster.membership_at.pop(name, None)
        self._ledger.write(changes, partial(self._gave_up, name))

    def _state(self, name: str) -> BrokerState:
        return self._ledger.journal.brokers[name].state

    def _successors(self, name: str) -> dict[str, BrokerEntry]:
        """The members that can take a broker's topics. If there are none, one that is leaving must stay."""
        brokers, membership = self._ledger.journal.brokers, self._ledger.membership()
        sure = {other for other in brokers if other != name and not self._ledger.pending(broker_key(other))}
        members = {other: brokers[other] for other in sorted(sure & self._roster.carriers())}
        leaving = {
            other: msgspec.structs.replace(brokers[other], state=BrokerState.MEMBER)
            for other in sorted(sure)
            if brokers[other].state is BrokerState.LEAVING and not membership.brokers[other].leaving
        }
        return members or leaving

    def _gave_up(self, name: str, now_s: float) -> None:
        self._office.log(f"broker {name} is given up")
        self.departed(name)
        self._moves.evacuate(name)

    def departed(self, name: str) -> None:
        """Forget what was found out about a broker that is no longer a member."""
        self._restoring.forget(name)
        self._roster.membership_at.pop(name, None)
        self._joining_since_s.pop(name, None)
        self._attended = {join: where for join, where in self._attended.items() if join[0] != name}
        self._reset = {(broker, run) for broker, run in self._reset if broker != name}
        self._restored = {(broker, run) for broker, run in self._restored if broker != name}

    def next_membership(
        self, now: Membership, brokers: dict[str, BrokerInfo], ring: tuple[str, ...], step: int = 1
    ) -> Membership:
        """The next membership; a changed ring begins closed for the topics whose directory changes."""
        previous = now.previous_ring
        if ring != now.ring and previous is None and now.ring:
            previous = now.ring
        version = now.version + step
        after = Membership(
            version=version,
            term=self._ledger.term,
            brokers=brokers,
            ring=ring,
            previous_ring=previous,
            store_url=self._office.store_url,
            cluster=self._office.cluster,
            timers=self.agreement.after(now),
            logs=now.logs,
            logs_version=now.logs_version,
            bounds=now.bounds,
        )
        return self._lives.after(now, after)

    # --- every tick

    def tick(self, now_s: float) -> None:
        for name, entry in self._ledger.journal.brokers.items():
            if entry.state not in LIVE or self._ledger.pending(broker_key(name)):
                continue
            if now_s - self._granted_s.get(name, now_s) > self.agreement.dead_s:
                self._give_up(name, now_s)
            else:
                self._set_up(name, entry, now_s)
        self._agree(now_s)
        self._lives.tick(now_s)
        if not self._ledger.pending(MEMBERSHIP_KEY):
            self._drive_ring(now_s)
        self._verify()

    def _agree(self, now_s: float) -> None:
        timers = self.agreement.due(self.all_informed, now_s)
        if timers is not None:
            membership = self._ledger.journal.membership
            changed = self.next_membership(membership, dict(membership.brokers), membership.ring)
            self._ledger.write({MEMBERSHIP_KEY: msgspec.structs.replace(changed, timers=timers)})

    def _verify(self) -> None:
        """After a loss of the store: write down that every broker has the records it should have."""
        ledger, loss = self._ledger, self._ledger.journal.loss
        if loss is None or loss.verified or ledger.pending(LOSS_KEY):
            return
        brokers = self._ledger.journal.brokers
        doubted = {
            (name, run) for name, run in self._doubted if self._roster.alive(name) and brokers[name].run_id == run
        }
        if doubted <= self._restored:
            ledger.write({LOSS_KEY: msgspec.structs.replace(loss, verified=True)})

    def _set_up(self, name: str, entry: BrokerEntry, now_s: float) -> None:
        """Take the next step this broker needs to become ready."""
        run = (name, entry.run_id)
        hello = self._hellos.get(name)
        joining = entry.state is BrokerState.JOINING
        if hello is None or hello.run_id != entry.run_id:
            return
        if joining and run not in self._reset:
            self._order_reset(name, entry, now_s)
        elif joining and name not in self._ledger.membership().brokers:
            self._introduce(name, entry)
        elif not self._roster.informed(name):
            self._order_membership(name, entry.run_id, now_s)
        elif (not hello.ready or run in self._doubted) and run not in self._restored:
            self._order_records(name, run, now_s)
        elif not hello.ready:
            self._order_mark(name, entry.run_id, now_s)

    def _introduce(self, name: str, entry: BrokerEntry) -> None:
        """Announce the broker to clients, so that pattern subscribers attach before topics go there."""
        membership = self._ledger.membership()
        version = membership.version + 1
        brokers = {**membership.brokers, name: BrokerInfo(entry.url, entry.site, version, began=version)}
        self._ledger.write({MEMBERSHIP_KEY: self.next_membership(membership, brokers, membership.ring)})

    def _order_reset(self, name: str, entry: BrokerEntry, now_s: float) -> None:
        run = (name, entry.run_id)

        def done(answer: bus.Answer, at_s: float) -> None:
            if self._ledger.journal.brokers.get(name) is not entry:
                return  # a late answer: the broker was given up since, and must be reset again
            self._reset.add(run)
            hello = self._hellos.get(name)
            if hello is not None:  # what it said about its ready key was true before the reset
                self._hellos[name] = msgspec.structs.replace(hello, ready=False)

        make = partial(bus.Reset, term=self._ledger.term)
        self._orders.need(("reset", run), name, make, done, now_s)

    def _order_membership(self, name: str, run_id: str, now_s: float) -> None:
        membership = self._ledger.journal.membership

        def done(answer: bus.Answer, at_s: float) -> None:
            restarted = self._ledger.pending(broker_key(name)) or self._ledger.journal.brokers[name].run_id != run_id
            if self._roster.alive(name) and not restarted:
                self._roster.membership_at[name] = answer.versions[""]

        make = partial(bus.InstallMembers, term=self._ledger.term, membership=membership)
        self._orders.need(("members", name, membership.version), name, make, done, now_s)

    def _order_records(self, name: str, run: tuple[str, str], now_s: float) -> None:
        wanted = partial(records_for, name, self._ledger.journal, self._ledger.term)
        self._restoring.drive(("records", run), name, wanted, partial(self._restored.add, run), now_s)

    def _order_mark(self, name: str, run_id: str, now_s: float) -> None:
        make = partial(bus.MarkReady, term=self._ledger.term, run_id=run_id)
        self._orders.need(("mark", name, run_id), name, make, lambda answer, at_s: None, now_s)

    # --- the ring

    def _drive_ring(self, now_s: float) -> None:
        membership = self._ledger.journal.membership
        if membership.previous_ring is None:
            self._change_ring(membership, now_s)
        elif self.all_informed():
            self._handover.drive(membership, now_s)

    def all_informed(self) -> bool:
        """Whether all brokers that are there have the newest membership."""
        brokers = self._ledger.journal.membership.brokers
        return all(self._roster.informed(name) for name in brokers if self._roster.alive(name))

    def _change_ring(self, membership: Membership, now_s: float) -> None:
        """Take in the brokers that are ready, and leave out those that are leaving."""
        brokers = self._ledger.journal.brokers
        ready = [name for name, entry in brokers.items() if self._may_carry(name, entry, now_s)]
        ring = tuple(sorted({*self._roster.carriers(), *ready}))
        if not ring or ring == membership.ring:
            return
        changes: dict[str, Entry] = {
            broker_key(name): msgspec.structs.replace(brokers[name], state=BrokerState.MEMBER) for name in ready
        }
        changes[MEMBERSHIP_KEY] = self.next_membership(membership, dict(membership.brokers), ring)
        self._office.log(f"the ring is now {', '.join(ring)}")
        self._ledger.write(changes)

    def _may_carry(self, name: str, entry: BrokerEntry, now_s: float) -> bool:
        """Whether a joining broker is ready and the pattern subscribers are there too, or took too long."""
        hello = self._hellos.get(name)
        if entry.state is not BrokerState.JOINING or hello is None or self._ledger.pending(broker_key(name)):
            return False
        if not hello.ready or (name, entry.run_id) not in self._reset:
            return False
        if self._roster.names(name) and self._roster.carriers():  # with no carrier left, those topics wait for this one
            return False
        since_s = self._joining_since_s.setdefault(name, now_s)
        return self._is_attended(name, now_s) or now_s - since_s > self._timing.ready_s

    def _is_attended(self, name: str, now_s: float) -> bool:
        """Whether all pattern subscribers are attached to a joining broker: no other broker has one that is not.

        A broker is counted once it has announced the join to its clients. Clients that come later attach to all
        brokers before their subscription begins; so a broker that was once found complete stays complete.
        """
        others = self._roster.carriers()
        join = (name, self._ledger.journal.membership.brokers[name].joined)
        attended = self._attended.setdefault(join, set())
        for broker in sorted(others - attended):
            if self._roster.informed(broker):
                self._count_patterns(broker, join, now_s)
        return attended >= others

    def _count_patterns(self, broker: str, join: tuple[str, int], now_s: float) -> None:
        def done(answer: bus.Answer, at_s: float) -> None:
            subscribers, attached = answer.counts[""]
            if subscribers == attached and join in self._attended:
                self._attended[join].add(broker)

        make = partial(bus.Count, term=self._ledger.term, epochs={"": join[1]})
        self._orders.need(("patterns", broker, join), broker, make, done, now_s)


def _same_server(hello: bus.Hello, entry: BrokerEntry) -> bool:
    return hello.run_id == entry.run_id or hello.url == entry.url
