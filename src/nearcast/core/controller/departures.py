"""Departures and provisioning: brokers that are drained and leave, and servers that a provider starts and stops."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.model.journal import (
    MEMBERSHIP_KEY,
    BrokerEntry,
    BrokerState,
    MoveEntry,
    Pace,
    Phase,
    TopicEntry,
    broker_key,
    topic_key,
)
from nearcast.core.model.logs import PartLoad
from nearcast.core.model.membership import ended_with
from nearcast.core.model.names import PROVIDER_CHANNEL
from nearcast.core.model.placement import Mode, Placement
from nearcast.core.model.settings import NEVER_S
from nearcast.core.wire import bus

if TYPE_CHECKING:
    from nearcast.core.controller.members import Members
    from nearcast.core.controller.moves import Moves
    from nearcast.core.controller.office import Office, Roster


LOOK_S = 0.1  # between two looks at the topics of a leaving broker: there may be very many
COUNT_S = 1.0  # between two looks at what a leaving broker keeps
MOVES_AT_ONCE = 200  # topics of one leaving broker that are moving at the same time


class Departures:
    """Lets a broker leave without its clients noticing:

        MEMBER -> LEAVING: out of the ring (handover.py), its topics are moved away like any others
               -> carries nothing: marked so in the membership, pattern subscribers let go of it
               -> what it keeps of logs is read or has expired, unless it is abandoned
               -> LEFT: no longer a member; if it was rented, its provider is asked to stop it

    Every step is derived from the journal again at each tick, so a new leader continues where the last one stopped.
    Once the ring without the broker is open, the journal names every topic the broker carries: those whose directory it
    was have been collected, and the others were collected when an earlier ring moved their directory elsewhere.
    """

    def __init__(
        self,
        office: Office,
        roster: Roster,
        members: Members,
        moves: Moves,
        looks_after: Callable[[str, str], bool],  # whether the policy decides where a topic of a broker goes
    ) -> None:
        self._office = office
        self._ledger, self._orders, self._timing = office.ledger, office.orders, office.timing
        self._roster = roster
        self._members = members
        self._moves = moves
        self._looks_after = looks_after
        self._looked_s: dict[str, float] = {}
        self._marked_s: dict[str, float] = {}  # since when a broker has been marked as carrying nothing
        self._unwatched: set[str] = set()  # those of them that no pattern subscriber holds any more
        self._counted_s: dict[str, float] = {}
        self.keeps: dict[str, dict[str, PartLoad]] = {}  # broker that leaves -> log -> how much there is

    # --- requests

    def begin(self, broker: str, *, by_policy: bool = False, abandon: bool = False) -> str:
        """Let a broker leave. Returns what is wrong with that, in words; empty if it is leaving."""
        problem = self.problem(broker)
        entry = self._ledger.journal.brokers.get(broker)
        if problem or entry is None or (entry.state is BrokerState.LEAVING and (entry.abandon or not abandon)):
            return problem
        self._office.log(f"broker {broker} is leaving")
        leaving = msgspec.structs.replace(entry, state=BrokerState.LEAVING, by_policy=by_policy, abandon=abandon)
        self._ledger.write_broker(broker, leaving)
        return ""

    def problem(self, broker: str, others: Collection[str] = ()) -> str:
        """Why the broker cannot leave now, together with these others; empty if it can, or is leaving."""
        entry = self._ledger.journal.brokers.get(broker)
        problem = self._problem(broker, entry)
        if problem or entry is None or entry.state is BrokerState.LEAVING:
            return problem
        if entry.state is not BrokerState.MEMBER:
            return f"broker {broker!r} is {entry.state}: only a member can leave"
        staying = self._roster.carriers().difference(others, {broker})
        if not any(not self._ledger.pending(broker_key(name)) for name in staying):
            return f"broker {broker!r} is the last member: add another one first"
        return ""

    def problem_of_staying(self, broker: str) -> str:
        """Why a broker that is leaving cannot stay; empty if it can."""
        entry = self._ledger.journal.brokers.get(broker)
        problem = self._problem(broker, entry)
        if problem or entry is None or entry.state is not BrokerState.LEAVING:
            return problem
        if self._ledger.membership().brokers[broker].leaving:
            return f"broker {broker!r} no longer carries topics: wait until it has left, then let it join again"
        return ""

    def cancel(self, broker: str, *, by_policy: bool = False) -> str:
        """Let a broker stay after all, or come back after it has left."""
        entry = self._ledger.journal.brokers.get(broker)
        problem = self.problem_of_staying(broker)
        if problem or entry is None:
            return problem
        if entry.state is BrokerState.LEAVING and not (by_policy and not entry.by_policy):
            self._office.log(f"broker {broker} stays")
            stays = msgspec.structs.replace(entry, state=BrokerState.MEMBER, abandon=False)
            self._ledger.write_broker(broker, stays)
        elif entry.state is BrokerState.LEFT and not by_policy:
            self._ledger.write_broker(broker, msgspec.structs.replace(entry, state=BrokerState.DEAD))
        return ""

    def _problem(self, broker: str, entry: BrokerEntry | None) -> str:
        if entry is None:
            return self._roster.unknown(broker)
        if self._ledger.pending(broker_key(broker)):
            return f"broker {broker!r} is just changing its state: try again"
        return ""

    # --- every tick

    def tick(self, now_s: float) -> None:
        for name, entry in self._ledger.journal.brokers.items():
            if entry.state is BrokerState.LEAVING and not self._ledger.pending(broker_key(name)):
                self._go_on(name, entry, now_s)
            elif entry.state is not BrokerState.LEAVING:
                self._marked_s.pop(name, None)
                self._unwatched.discard(name)
                self.keeps.pop(name, None)

    def _go_on(self, name: str, entry: BrokerEntry, now_s: float) -> None:
        membership = self._ledger.journal.membership
        if self._ledger.pending(MEMBERSHIP_KEY) or membership.previous_ring is not None:
            return
        if name in membership.ring or name not in membership.brokers:
            return
        if membership.brokers[name].leaving:
            self._await_patterns(name, entry, now_s)
            return
        if now_s - self._looked_s.get(name, NEVER_S) < LOOK_S:
            return
        self._looked_s[name] = now_s
        resting, moving = self._topics_of(name)
        if resting or moving:
            self._empty(name, entry, resting[: max(0, MOVES_AT_ONCE - moving)])
        else:
            marked = msgspec.structs.replace(membership.brokers[name], leaving=True)
            brokers = {**membership.brokers, name: marked}
            changed = self._members.next_membership(membership, brokers, membership.ring)
            self._ledger.write({MEMBERSHIP_KEY: changed})

    def _topics_of(self, name: str) -> tuple[list[str], int]:
        """The topics at rest on a broker, and how many are moving from it or to it."""
        resting, moving = [], 0
        for topic, entry in self._ledger.journal.topics.items():
            if entry.move is not None:
                moving += name in entry.placement.brokers or name in entry.move.target.brokers
            elif name in entry.placement.brokers:
                resting.append(topic)
        return resting, moving

    def _empty(self, name: str, entry: BrokerEntry, resting: list[str]) -> None:
        """Move the topics at rest there elsewhere, some at a time. The policy moves those it looks after itself."""
        topics = self._ledger.journal.topics
        for topic in resting:
            if self._ledger.pending(topic_key(topic)):
                continue
            if entry.by_policy and self._looks_after(name, topic):
                continue
            old = topics[topic].placement
            moved = TopicEntry(old, MoveEntry(Phase.PREPARE, self._elsewhere(topic, name, old)))
            self._ledger.write_topic(topic, moved, partial(self._moves.began, topic, Pace.EAGER))

    def _elsewhere(self, topic: str, name: str, old: Placement) -> Placement:
        """The same placement without the broker; the directory if none is left."""
        members = self._ledger.journal.membership.version
        left = tuple(broker for broker in old.brokers if broker != name and broker in self._roster.carriers())
        if len(left) > 1:
            return Placement(old.epoch + 1, old.mode, left, members)
        directory = self._roster.directory(topic)
        assert directory is not None
        return Placement(old.epoch + 1, Mode.SINGLE, left or (directory,), members)

    def _await_patterns(self, name: str, entry: BrokerEntry, now_s: float) -> None:
        since_s = self._marked_s.setdefault(name, now_s)
        if not all(self._roster.informed(other) for other in self._ledger.journal.membership.ring):
            return  # every subscriber must hear about it, wherever it listens
        if name in self._unwatched or now_s - since_s > self._timing.ready_s:
            self._await_readers(name, entry, now_s)
        elif self._roster.informed(name):
            self._count_patterns(name, now_s)

    def _count_patterns(self, name: str, now_s: float) -> None:
        def done(answer: bus.Answer, at_s: float) -> None:
            if answer.counts[""][0] == 0 and name in self._marked_s:
                self._unwatched.add(name)

        make = partial(bus.Count, term=self._ledger.term, epochs={"": 0})
        self._orders.need(("unwatched", name), name, make, done, now_s)

    def _await_readers(self, name: str, entry: BrokerEntry, now_s: float) -> None:
        """What the broker keeps is lost with it, so it stays until that is read or has expired."""
        keeps = self.keeps.get(name)
        unneeded = keeps is not None and (entry.abandon or all(load.is_read for load in keeps.values()))
        if unneeded or not self._ledger.journal.membership.logs:
            self._leave(name, entry)
        elif now_s - self._counted_s.get(name, NEVER_S) >= COUNT_S:
            self._counted_s[name] = now_s
            make = partial(bus.CountParts, term=self._ledger.term)
            self._orders.need(("parts", name, now_s), name, make, partial(self._counted, name), now_s)

    def _counted(self, name: str, answer: bus.Answer, now_s: float) -> None:
        membership = self._ledger.journal.membership
        if answer.life == membership.life(name) and {log.key for log in membership.logs} == answer.parts.keys():
            self.keeps[name] = answer.parts

    def _leave(self, name: str, entry: BrokerEntry) -> None:
        membership = self._ledger.journal.membership
        brokers = {broker: info for broker, info in membership.brokers.items() if broker != name}
        after = self._members.next_membership(membership, brokers, membership.ring)
        after = ended_with(after, membership.life(name), self.keeps.get(name, {}))

        def left(now_s: float) -> None:
            self._office.log(f"broker {name} has left")
            self._members.departed(name)

        self._ledger.write(
            {
                broker_key(name): msgspec.structs.replace(entry, state=BrokerState.LEFT),
                MEMBERSHIP_KEY: after,
            },
            left,
        )


# --- provisioning


PREFIX = "rented-"
SAY_AGAIN_S = 1.0
START_S = 30.0  # a rented broker that has not said hello by then is not coming, or not coming back


class Provisioning:
    """Has servers started when they are needed and stopped when they are not.

    The provider listens on the bus (runtime/provider.py). What is wanted is in the journal, so each order is repeated
    until it takes effect: a rented broker says hello, a released one falls silent. Servers that were not rented are
    never stopped.

    If a server under the requested name is still running, a provider assumes that it was started already. So a broker
    that has left but is not stopped yet keeps its name. If it is only heard from after its name was given away, it is
    released first.

    A rented broker that was given up and does not come back is released too. It may never be heard from again, so its
    release is repeated for as long as a start may take.
    """

    def __init__(self, office: Office, members: Members) -> None:
        self._office = office
        self._ledger = office.ledger
        self._members = members
        self._requested_s: dict[str, float] = {}
        self._since_s: dict[str, float] = {}  # since when a broker is expected, or expected back
        self._lost_s: dict[str, float] = {}  # when a broker that did not come back was released
        self._running: set[str] = set()  # brokers that have left but are not stopped yet

    def rent(self) -> str:
        """Ask for one more broker; returns its name."""
        name = self._free_name()
        before = self._ledger.journal.brokers.get(name)
        # Keep the run id and URL of an earlier broker of this name: it must be stopped, not mistaken for the new one.
        url, run_id = (before.url, before.run_id) if before is not None else ("", "")
        self._ledger.write_broker(name, BrokerEntry(url, "", run_id, BrokerState.RENTED, rented=True))
        return name

    def _free_name(self) -> str:
        return next(name for number in count(1) if self._is_free(name := f"{PREFIX}{number}"))

    def _is_free(self, name: str) -> bool:
        entry = self._ledger.journal.brokers.get(name)
        if self._ledger.pending(broker_key(name)):
            return False
        return entry is None or (entry.state is BrokerState.LEFT and name not in self._running)

    def tick(self, now_s: float) -> None:
        brokers = self._ledger.journal.brokers
        self._running = {name for name, entry in brokers.items() if self._still_runs(name, entry, now_s)}
        for name, entry in brokers.items():
            if name in self._running:
                self._say(name, bus.Release(name, self._ledger.term, entry.url), now_s)
            if entry.rented and entry.state in (BrokerState.RENTED, BrokerState.DEAD):
                self._await(name, entry, now_s)
            else:
                self._since_s.pop(name, None)

    def _still_runs(self, name: str, entry: BrokerEntry, now_s: float) -> bool:
        """Whether it should have been stopped: it has left, and still says hello."""
        left = entry.rented and entry.state in (BrokerState.LEFT, BrokerState.RENTED)
        # Without a run id it was never here: a hello under this name comes from the broker that was rented.
        heard = bool(entry.run_id) and self._members.heard_lately(name, entry.run_id, now_s)
        return left and (heard or now_s - self._lost_s.get(name, NEVER_S) < START_S)

    def _await(self, name: str, entry: BrokerEntry, now_s: float) -> None:
        since_s = self._since_s.setdefault(name, now_s)
        if now_s - since_s > START_S:
            self._give_back(name, entry, now_s)
        elif entry.state is BrokerState.RENTED and name not in self._running:
            self._say(name, bus.Rent(name, self._ledger.term), now_s)

    def _give_back(self, name: str, entry: BrokerEntry, now_s: float) -> None:
        if self._ledger.pending(broker_key(name)):
            return
        if entry.state is BrokerState.DEAD:
            self._lost_s[name] = now_s
            self._office.log(f"{name} was given up {START_S:g} s ago and did not come back: it is released")
        else:
            self._office.log(f"no provider has started {name} within {START_S:g} s: is one running?")
        self._ledger.write_broker(name, msgspec.structs.replace(entry, state=BrokerState.LEFT))

    def _say(self, name: str, message: bus.ToProvider, now_s: float) -> None:
        if now_s - self._requested_s.get(name, NEVER_S) >= SAY_AGAIN_S:
            self._requested_s[name] = now_s
            self._office.publish(PROVIDER_CHANNEL, message)
