"""A leadership: everything a controller does while it is the leader. It starts from a journal and leaves no trace.

It carries moves through their stages, many at once. What it must not forget goes through the ledger first; what it can
find out again it keeps in memory. Before it decides anything it listens: a broker may know more than the journal, if
the store has lost some of it (`core/model/journal.py`).

Other modules do the rest: `members.py` membership, `departures.py` leaving brokers, `requests.py` people's requests,
`planner.py` what the policy wants, and `subscribers.py` which gateway serves which subscriber.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import islice
from random import Random

import msgspec

from nearcast.core.controller.departures import Departures, Provisioning
from nearcast.core.controller.handover import INSTALL_BATCH, Restoring
from nearcast.core.controller.ledger import Ledger
from nearcast.core.controller.members import Members
from nearcast.core.controller.moves import Move, Orders, Stage
from nearcast.core.controller.planner import Planner, PlanningSettings
from nearcast.core.controller.questions import Questions
from nearcast.core.controller.requests import Requests
from nearcast.core.controller.subscribers import Coordination, CoordinationSettings
from nearcast.core.model.journal import Journal, Known, MoveEntry, Pace, Phase, Position, TopicEntry, lost, topic_key
from nearcast.core.model.names import ANSWER_CHANNEL
from nearcast.core.model.placement import Placement, Record, single
from nearcast.core.model.settings import DEFAULT_TIMING, NEVER_S, Timing
from nearcast.core.wire import bus

COUNT_EVERY_S = 0.05
EVACUATED_MAX = 10_000  # topics of dead brokers moving at once: a tick looks at all moves, which takes about 50 ms
LAZY_SLOTS = 50  # how many lazy moves of one broker may begin per T_lazy


class LeaderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a leader."""

    timing: Timing = DEFAULT_TIMING
    planning: PlanningSettings | None = None  # None: no automatic planning
    coordinating: CoordinationSettings = CoordinationSettings()
    dice: Random


class Leader:
    def __init__(
        self,
        ledger: Ledger,
        *,
        leader: str,
        store_url: str,
        settings: LeaderSettings,
        orders: Orders | None = None,  # of this term, if orders have already been given
        wall_offset_s: float = 0.0,
        now_s: float,
    ) -> None:
        self.ledger = ledger
        self._read_version = ledger.version
        self._listening = True
        self.leader = leader
        self.store_url = store_url
        self.timing = settings.timing
        self.orders = orders or Orders(ledger.term, self.timing.retry_s)
        self.restoring = Restoring(self.orders, ledger.term)
        self.notes: list[str] = []  # what happened, for the driver's log
        self.told: list[tuple[bytes, bytes]] = []  # (channel, payload) to publish on the bus
        self.wall_offset_s = wall_offset_s
        self.moves_done = 0
        self.cluster = ledger.journal.membership.cluster or f"{settings.dice.getrandbits(64):016x}"
        self._moves = {
            topic: Move(topic, entry, now_s) for topic, entry in self.journal.topics.items() if entry.move is not None
        }
        self.members = Members(self, now_s)
        self.departures = Departures(self)
        self.provisioning = Provisioning(self)
        self.questions = Questions(self.term)
        self.planner = Planner(self, settings.planning, now_s)
        self.coordination = Coordination(self, settings.coordinating, settings.dice, now_s)
        self.requests = Requests(self)
        # The leader before us may have given a broker up and stopped before its topics began to move.
        self._evacuating: dict[str, None] = {}
        for entry in self.journal.topics.values():
            self._leave_behind(entry.placement)
        self._counted_s: dict[str, float] = {}
        self._lazy_at_s: dict[str, float] = {}
        self._touched: dict[str, None] = {}  # topics whose move may be able to continue now

    @property
    def journal(self) -> Journal:
        return self.ledger.journal

    @property
    def term(self) -> int:
        return self.ledger.term

    def stage(self, topic: str) -> Stage | None:
        """The stage of the topic's move; None if it is at rest."""
        move = self._moves.get(topic)
        return move.stage if move is not None else None

    def log(self, note: str) -> None:
        self.notes.append(note)

    @property
    def known(self) -> Known:
        """What anyone may know about this cluster by now."""
        membership = self.journal.membership
        return Known(membership.cluster, membership.version, self.term, self._position, self.store_url)

    @property
    def _position(self) -> Position:
        return self.journal.position(self.ledger.version)

    def lost(self, known: Known) -> bool:
        """Whether the store had lost something when we read the journal, or has now."""
        return lost(known, self.journal, self.ledger.version if known.term == self.term else self._read_version)

    def listens(self, now_s: float) -> bool:
        """Whether a broker that may know more than the journal, or may still have its lease, has not been heard yet."""
        self._listening = self._listening and not self.members.all_heard(now_s)
        return self._listening

    def tell(self, broker: str, agent: int, message: bus.ToAgent) -> None:
        said = msgspec.structs.replace(message, journal=self._position)
        self.told.append((bus.agent_channel(broker, agent), bus.encode(said)))

    def reply(self, answer: bus.State | bus.Assignment) -> None:
        asker, _, _ = answer.request.partition(".")
        self.told.append((ANSWER_CHANNEL + asker.encode(), bus.encode(answer)))

    @property
    def busy(self) -> bool:
        """Whether topics are moving, or about to move."""
        return bool(self._moves) or len(self.requests) > 0

    # --- inputs

    def heard(self, message: bus.ToController, now_s: float) -> None:
        if isinstance(message, bus.Hello):
            self.members.hello(message, now_s)
        elif isinstance(message, bus.Answer):
            self.orders.answered(message, now_s)
        elif isinstance(message, bus.Report):
            self.planner.book.add(message, now_s)
        elif isinstance(message, bus.FromGateway | bus.AboutSubscribers):
            self.coordination.heard(message, now_s)
        else:
            self.requests.heard(message, now_s)

    def tick(self, now_s: float) -> None:
        if self.listens(now_s):
            return
        self.members.tick(now_s)
        self._evacuate_all(now_s)
        self.departures.tick(now_s)
        self.provisioning.tick(now_s)
        self.requests.tick(now_s)
        self.planner.tick(now_s)
        self.coordination.tick(now_s)
        self._touched.update(dict.fromkeys(self._moves))
        self.go_on(now_s)

    def go_on(self, now_s: float) -> None:
        """Drive the moves that an answer or a commit has touched; the tick touches all."""
        if self._listening:
            return
        touched, self._touched = self._touched, {}
        self._drive_moves([self._moves[topic] for topic in touched if topic in self._moves], now_s)
        self._flush_orders()

    def _flush_orders(self) -> None:
        for broker, order in self.orders.outgoing:
            agent = self.members.agent_of(broker)
            if agent is not None:  # otherwise it is repeated when the broker has been heard
                self.tell(broker, agent, order)
        self.orders.outgoing.clear()

    # --- moves

    def began(self, topic: str, pace: Pace, now_s: float) -> None:
        """The journal has a new move."""
        entry = self.journal.topics[topic]
        not_before_s = now_s if pace is Pace.EAGER else self._lazy_slot(entry.placement.brokers[0], now_s)
        self._moves[topic] = Move(topic, entry, now_s, not_before_s)
        self._touched[topic] = None

    def _lazy_slot(self, broker: str, now_s: float) -> float:
        slot_s = max(now_s, self._lazy_at_s.get(broker, 0.0)) + self.timing.lazy_s / LAZY_SLOTS
        self._lazy_at_s[broker] = slot_s
        return min(slot_s, now_s + self.timing.lazy_s)

    def _drive_moves(self, moves: list[Move], now_s: float) -> None:
        installs: dict[str, dict[str, Record]] = {}
        counts: dict[str, dict[str, int]] = {}
        for move in moves:
            if now_s < move.not_before_s or self.ledger.pending(topic_key(move.topic)):
                continue
            if self._reconsider(move):
                continue
            if move.stage is Stage.READY:
                self._await_ready(move, counts, now_s)
            else:
                self._install(move, installs, now_s)
        for broker, wanted in installs.items():
            self._order_installs(broker, wanted, now_s)
        for broker, epochs in counts.items():
            self._order_counts(broker, epochs, now_s)

    def _install(self, move: Move, installs: dict[str, dict[str, Record]], now_s: float) -> None:
        directory = self.members.directory(move.topic)
        if move.complete(directory, self.members.carries):
            move.advance(now_s)
            self._touched[move.topic] = None
            if move.stage is Stage.SETTLED:
                done = TopicEntry(move.entry.target)
                self.ledger.write_topic(move.topic, done, partial(self._ended, move))
            return
        for broker in move.due(directory, self.members.carries, now_s, self.timing.retry_s):
            installs.setdefault(broker, {})[move.topic] = move.record(self.term)

    def _ended(self, move: Move, now_s: float) -> None:
        self._moves.pop(move.topic, None)
        self.moves_done += 1
        self._rescue(move.topic, now_s)
        self._leave_behind(move.entry.target)

    def _order_installs(self, broker: str, wanted: dict[str, Record], now_s: float) -> None:
        topics = list(wanted)
        for start in range(0, len(topics), INSTALL_BATCH):
            batch = {topic: wanted[topic] for topic in topics[start : start + INSTALL_BATCH]}
            make = partial(bus.Install, term=self.term, records=batch)
            self.orders.need(("install", broker, now_s, start), broker, make, self._installed, now_s)

    def _installed(self, answer: bus.Answer, now_s: float) -> None:
        for topic, version in answer.versions.items():
            move = self._moves.get(topic)
            if move is not None and move.stage is not Stage.READY and move.stage is not Stage.SETTLED:
                move.installed(answer.broker, version, self.term)
                self._touched[topic] = None

    # --- readiness

    def _await_ready(self, move: Move, counts: dict[str, dict[str, int]], now_s: float) -> None:
        members = [broker for broker in move.old.brokers if self.members.carries(broker)]
        if move.ready >= set(members):
            self._decide(move, forced=False)
        elif now_s - move.since_s > self.timing.ready_s:
            self.log(f"topic {move.topic} is moved by force: not all subscribers got ready in {self.timing.ready_s} s")
            self._decide(move, forced=True)
        else:
            for broker in members:
                counts.setdefault(broker, {})[move.topic] = move.epoch

    def _order_counts(self, broker: str, epochs: dict[str, int], now_s: float) -> None:
        if now_s - self._counted_s.get(broker, NEVER_S) < COUNT_EVERY_S:
            return
        self._counted_s[broker] = now_s
        topics = list(epochs)
        for start in range(0, len(topics), INSTALL_BATCH):
            batch = {topic: epochs[topic] for topic in topics[start : start + INSTALL_BATCH]}
            make = partial(bus.Count, term=self.term, epochs=batch)
            self.orders.need(("count", broker, now_s, start), broker, make, partial(self._counted, batch), now_s)

    def _counted(self, epochs: dict[str, int], answer: bus.Answer, now_s: float) -> None:
        for topic, (subscribers, ready) in answer.counts.items():
            move = self._moves.get(topic)
            if move is None or move.stage is not Stage.READY or move.epoch != epochs.get(topic):
                continue
            self._touched[topic] = None
            if subscribers == ready:
                move.ready.add(answer.broker)
            else:
                move.ready.discard(answer.broker)

    def _decide(self, move: Move, *, forced: bool) -> None:
        """Write down that the topic switches; the fences follow once that is in the store."""
        entry = msgspec.structs.replace(move.entry, phase=Phase.SWITCH, forced=forced)
        self._redirect(move, entry)

    def _redirect(self, move: Move, entry: MoveEntry) -> None:
        def decided(now_s: float) -> None:
            move.decided(entry, now_s)
            self._touched[move.topic] = None

        self.ledger.write_topic(move.topic, TopicEntry(move.old, entry), decided)

    # --- dead brokers

    def forget(self, broker: str) -> None:
        """A server came back with an empty memory: current moves install there again."""
        self.restoring.forget(broker)
        for move in self._moves.values():
            move.forget(broker)

    def evacuate(self, broker: str) -> None:
        """A broker was given up: move the topics at rest that name it elsewhere. Moves handle it themselves."""
        self._evacuating[broker] = None

    def _leave_behind(self, placement: Placement) -> None:
        """Evacuate the brokers of the placement that are no longer there."""
        self._evacuating |= {broker: None for broker in placement.brokers if not self._is_at(broker, placement)}

    def _evacuate_all(self, now_s: float) -> None:
        """Repeat until no topic at rest names such a broker: an entry that is being written cannot be changed yet.

        Nothing can be evacuated while there is no ring: after a loss of the store all brokers may be gone, and join
        again.
        """
        room = EVACUATED_MAX - len(self._moves) - self.ledger.waiting
        if room <= 0 or not self.journal.membership.ring:
            return
        for broker in list(self._evacuating):
            for topic in islice(self._resting(broker), room):
                room -= self._rescue(topic, now_s)
            if room > 0 and next(self._resting(broker), None) is None:
                del self._evacuating[broker]

    def _resting(self, broker: str) -> Iterator[str]:
        """The topics at rest that name a broker which is no longer there."""
        for topic, entry in self.journal.topics.items():
            if entry.move is None and broker in entry.placement.brokers and not self._is_at(broker, entry.placement):
                yield topic

    def _is_at(self, broker: str, placement: Placement) -> bool:
        """Whether the broker the placement means carries its topics; not one that joined later under the same name."""
        return self.members.carries(broker) and self.journal.membership.has(broker, placement)

    def _whole(self, placement: Placement) -> bool:
        return all(self._is_at(broker, placement) for broker in placement.brokers)

    def names(self, broker: str) -> bool:
        """Whether a topic still names the broker, now or as its target."""
        return any(
            broker in entry.placement.brokers or (entry.move is not None and broker in entry.move.target.brokers)
            for entry in self.journal.topics.values()
        )

    def _rescue(self, topic: str, now_s: float) -> bool:
        """Move a topic at rest away from dead brokers, by force. Returns whether the move has just begun."""
        entry = self.journal.topics[topic]
        if entry.move is not None or self.ledger.pending(topic_key(topic)) or self._whole(entry.placement):
            return False
        target = self._refuge(topic, entry.placement, entry.placement.epoch + 1)
        if target is None:
            return False
        moved = TopicEntry(entry.placement, MoveEntry(Phase.SWITCH, target, forced=True))
        self.ledger.write_topic(topic, moved, partial(self.began, topic, Pace.EAGER))
        return True

    def _refuge(self, topic: str, placement: Placement, epoch: int) -> Placement | None:
        """The same placement without its dead brokers; the directory if none is left."""
        members = self.journal.membership.version
        epoch = self._unused(epoch)
        left = tuple(broker for broker in placement.brokers if self._is_at(broker, placement))
        if len(left) > 1:
            return Placement(epoch, placement.mode, left, members)
        directory = self.members.directory(topic)
        home = left[0] if left else directory
        return single(epoch, home, members) if home is not None else None

    def _unused(self, epoch: int) -> int:
        """This epoch or a later one: the dead may know epochs the store has lost, but none as high as this version."""
        return max(epoch, self.journal.membership.version)

    def _reconsider(self, move: Move) -> bool:
        """Change a move after a broker in it died. True: a new decision is on its way to the store."""
        target, old = move.entry.target, move.old
        if move.stage in (Stage.PREPARE, Stage.READY):
            if self._whole(target) and self._whole(old):
                return False
            aim = target if self._whole(target) else old
            refuge = self._refuge(move.topic, aim, target.epoch + 1)
            if refuge is None:
                return False
            told = tuple(sorted({*move.entry.told, *target.brokers}))
            # Giving up a move is a switch too: to a fresh epoch with the old placement, where everyone already is.
            forced = not (refuge.same_place(old) and self._whole(old))
            self._redirect(move, MoveEntry(Phase.SWITCH, refuge, forced, told))
            return True
        if move.stage is Stage.SWITCH and not move.entry.forced and not self._whole(old):
            self._redirect(move, msgspec.structs.replace(move.entry, forced=True))
            return True
        return False
