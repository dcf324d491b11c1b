"""Moves: how the controller takes topics from one placement to the next (PROTOCOL "Controller").

A `Move` is the move of one topic; `Moves` drives all of them, many at once. Topics whose broker died are moved from
here too, by force.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import partial
from itertools import islice

import msgspec

from nearcast.core.controller.office import INSTALL_BATCH, Office, Roster
from nearcast.core.model import placement as records
from nearcast.core.model.journal import MoveEntry, Pace, Phase, TopicEntry, topic_key
from nearcast.core.model.logs import after_all
from nearcast.core.model.placement import Placement, Record
from nearcast.core.model.settings import NEVER_S
from nearcast.core.wire import bus

COUNT_EVERY_S = 0.05
EVACUATED_MAX = 10_000  # topics of dead brokers moving at once: a tick looks at all moves, which takes about 50 ms
LAZY_SLOTS = 50  # how many lazy moves of one broker may begin per T_lazy


class Stage(StrEnum):
    """How far a move is; see `Move`."""

    PREPARE = "prepare"
    READY = "ready"
    SWITCH = "switch"
    SETTLE = "settle"
    SETTLED = "settled"  # everything is installed; the journal does not say so yet


_AFTER = {Stage.PREPARE: Stage.READY, Stage.SWITCH: Stage.SETTLE, Stage.SETTLE: Stage.SETTLED}


class Move:
    """The move of one topic to its next placement:

        PREPARE  install the prepare record at all old members
        READY    wait until at each old member all subscribers hold the new placement, or time is up
        SWITCH   install the switch record, the fence, at all old members; no way back from here
        SETTLE   install the settled record at old and new members, the directory and every other broker that knew

    If logs keep the topic, a switched member says where its part ends, and the new members get a mark with all of
    these ends together with the settled record: readers come to the mark only when they have read up to there.

    The journal knows only PREPARE and SWITCH. A new leader does not know what is installed where, so it simply installs
    it again. A dead broker counts as done in every stage.
    """

    def __init__(self, topic: str, entry: TopicEntry, now_s: float, not_before_s: float = 0.0) -> None:
        assert entry.move is not None
        self.topic = topic
        self.old = entry.placement
        self.entry: MoveEntry = entry.move
        self.stage = Stage.PREPARE if entry.move.phase is Phase.PREPARE else Stage.SWITCH
        self.since_s = now_s  # when the stage began
        self.not_before_s = not_before_s
        self.ready: set[str] = set()  # old members whose subscribers were all ready at the last count
        self.ends: dict[str, dict[str, str]] = {}  # log -> life of an old member -> the last entry of its part
        self._done: set[str] = set()
        self._sent_s: dict[str, float] = {}

    @property
    def epoch(self) -> int:
        return self.entry.target.epoch

    def targets(self, directory: str | None) -> set[str]:
        """The brokers where this stage installs its record."""
        if self.stage is not Stage.SETTLE:
            return set(self.old.brokers)
        others = {directory} if directory is not None else set()
        return {*self.old.brokers, *self.entry.target.brokers, *self.entry.told, *others}

    def record(self, term: int) -> Record:
        target, forced = self.entry.target, self.entry.forced
        if self.stage is Stage.PREPARE:
            return records.prepare(self.old, target, term)
        if self.stage is Stage.SWITCH:
            return records.switch(self.old, target, term, forced=forced)
        return records.settled(target, term, forced=forced)

    def due(self, directory: str | None, alive: Callable[[str], bool], now_s: float, retry_s: float) -> list[str]:
        """The brokers to send this stage's record to now."""
        due = [
            broker
            for broker in sorted(self.targets(directory))
            if broker not in self._done and alive(broker) and now_s - self._sent_s.get(broker, NEVER_S) >= retry_s
        ]
        self._sent_s.update((broker, now_s) for broker in due)
        return due

    def installed(self, answer: bus.Answer, version: int, term: int) -> None:
        if version >= self.record(term).version:
            self._done.add(answer.broker)
            if self.stage is Stage.SWITCH:
                after_all(self.ends, {log: {answer.life: end} for log, end in answer.ends.items()})

    def forget(self, broker: str) -> None:
        """The broker's server came back with an empty memory: what was installed there is gone."""
        self._done.discard(broker)
        self._sent_s.pop(broker, None)
        self.ready.discard(broker)

    def complete(self, directory: str | None, alive: Callable[[str], bool]) -> bool:
        """Whether this stage's record is at all its live targets."""
        return all(broker in self._done or not alive(broker) for broker in self.targets(directory))

    def advance(self, now_s: float) -> None:
        self.enter(_AFTER[self.stage], now_s)

    def decided(self, entry: MoveEntry, now_s: float) -> None:
        """The journal has the decision to switch."""
        self.entry = entry
        self.enter(Stage.SWITCH, now_s)

    def enter(self, stage: Stage, now_s: float) -> None:
        self.stage, self.since_s = stage, now_s
        self._done.clear()
        self._sent_s.clear()


# --- all moves


class Moves:
    """The moves in progress, and the topics that have to leave dead brokers."""

    def __init__(self, office: Office, roster: Roster, now_s: float) -> None:
        self._office = office
        self._ledger, self._orders, self._timing = office.ledger, office.orders, office.timing
        self._roster = roster
        self.done = 0
        topics = office.journal.topics
        self._moves = {topic: Move(topic, entry, now_s) for topic, entry in topics.items() if entry.move is not None}
        # The leader before us may have given a broker up and stopped before its topics began to move.
        self._evacuating: dict[str, None] = {}
        for entry in topics.values():
            self._leave_behind(entry.placement)
        self._installs = 0  # orders to install records
        self._counted_s: dict[str, float] = {}
        self._lazy_at_s: dict[str, float] = {}
        self._touched: dict[str, None] = {}  # topics whose move may be able to continue now

    def __len__(self) -> int:
        return len(self._moves)

    def stage(self, topic: str) -> Stage | None:
        """The stage of the topic's move; None if it is at rest."""
        move = self._moves.get(topic)
        return move.stage if move is not None else None

    def tick(self, now_s: float) -> None:
        """Touch every move; `go_on` drives them."""
        self._evacuate_all(now_s)
        self._touched.update(dict.fromkeys(self._moves))

    def go_on(self, now_s: float) -> None:
        """Drive the moves that an answer or a commit has touched."""
        touched, self._touched = self._touched, {}
        self._drive([self._moves[topic] for topic in touched if topic in self._moves], now_s)

    def began(self, topic: str, pace: Pace, now_s: float) -> None:
        """The journal has a new move."""
        entry = self._ledger.journal.topics[topic]
        not_before_s = now_s if pace is Pace.EAGER else self._lazy_slot(entry.placement.brokers[0], now_s)
        self._moves[topic] = Move(topic, entry, now_s, not_before_s)
        self._touched[topic] = None

    def _lazy_slot(self, broker: str, now_s: float) -> float:
        slot_s = max(now_s, self._lazy_at_s.get(broker, 0.0)) + self._timing.lazy_s / LAZY_SLOTS
        self._lazy_at_s[broker] = slot_s
        return min(slot_s, now_s + self._timing.lazy_s)

    def _drive(self, moves: list[Move], now_s: float) -> None:
        installs: dict[str, dict[str, Record]] = {}
        counts: dict[str, dict[str, int]] = {}
        for move in moves:
            if now_s < move.not_before_s or self._ledger.pending(topic_key(move.topic)):
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
        directory = self._roster.directory(move.topic)
        if move.complete(directory, self._roster.carries):
            move.advance(now_s)
            self._touched[move.topic] = None
            if move.stage is Stage.SETTLED:
                done = TopicEntry(move.entry.target)
                self._ledger.write_topic(move.topic, done, partial(self._ended, move))
            return
        settles = move.stage is Stage.SETTLE and self._ledger.journal.membership.logs
        ready = self._settles if settles else self._roster.carries
        for broker in move.due(directory, ready, now_s, self._timing.retry_s):
            installs.setdefault(broker, {})[move.topic] = move.record(self._ledger.term)

    def _settles(self, broker: str) -> bool:
        """Whether topics may settle there. What is kept from then on must be of a version that knows who has died."""
        return self._roster.carries(broker) and self._roster.informed(broker)

    def _ended(self, move: Move, now_s: float) -> None:
        self._moves.pop(move.topic, None)
        self.done += 1
        self._rescue(move.topic, now_s)
        self._leave_behind(move.entry.target)

    def _order_installs(self, broker: str, wanted: dict[str, Record], now_s: float) -> None:
        topics = list(wanted)
        for start in range(0, len(topics), INSTALL_BATCH):
            batch = {topic: wanted[topic] for topic in topics[start : start + INSTALL_BATCH]}
            make = partial(bus.Install, term=self._ledger.term, records=batch, after=self._after(batch))
            self._installs += 1  # moves know themselves when to repeat: two answers at one moment give two orders
            self._orders.need(("install", self._installs), broker, make, self._installed, now_s)

    def _after(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """What readers must have read before they continue where these topics settle: one mark for all of them."""
        after: dict[str, dict[str, str]] = {}
        for topic in topics:
            move = self._moves[topic]
            if move.ends and move.stage is Stage.SETTLE:
                after_all(after, move.ends)
        return after

    def _installed(self, answer: bus.Answer, now_s: float) -> None:
        for topic, version in answer.versions.items():
            move = self._moves.get(topic)
            if move is not None and move.stage is not Stage.READY and move.stage is not Stage.SETTLED:
                move.installed(answer, version, self._ledger.term)
                self._touched[topic] = None

    # --- readiness

    def _await_ready(self, move: Move, counts: dict[str, dict[str, int]], now_s: float) -> None:
        members = [broker for broker in move.old.brokers if self._roster.carries(broker)]
        if move.ready >= set(members):
            self._decide(move, forced=False)
        elif now_s - move.since_s > self._timing.ready_s:
            self._office.log(
                f"topic {move.topic} is moved by force: not all subscribers got ready in {self._timing.ready_s} s"
            )
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
            make = partial(bus.Count, term=self._ledger.term, epochs=batch)
            self._orders.need(("count", broker, now_s, start), broker, make, partial(self._counted, batch), now_s)

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

        self._ledger.write_topic(move.topic, TopicEntry(move.old, entry), decided)

    # --- dead brokers

    def forget(self, broker: str) -> None:
        """A server came back with an empty memory: current moves install there again."""
        for move in self._moves.values():
            move.forget(broker)

    def evacuate(self, broker: str) -> None:
        """A broker was given up: move the topics at rest that name it elsewhere. Moves handle it themselves."""
        self._evacuating[broker] = None

    def _leave_behind(self, placement: Placement) -> None:
        """Evacuate the brokers of the placement that are no longer there."""
        self._evacuating |= {broker: None for broker in placement.brokers if not self._roster.is_at(broker, placement)}

    def _evacuate_all(self, now_s: float) -> None:
        """Repeat until no topic at rest names such a broker: an entry that is being written cannot be changed yet.

        Nothing can be evacuated while there is no ring: after a loss of the store all brokers may be gone, and join
        again.
        """
        room = EVACUATED_MAX - len(self._moves) - self._ledger.waiting
        if room <= 0 or not self._ledger.journal.membership.ring:
            return
        for broker in list(self._evacuating):
            for topic in islice(self._resting(broker), room):
                room -= self._rescue(topic, now_s)
            if room > 0 and next(self._resting(broker), None) is None:
                del self._evacuating[broker]

    def _resting(self, broker: str) -> Iterator[str]:
        """The topics at rest that name a broker which is no longer there."""
        for topic, entry in self._ledger.journal.topics.items():
            if (
                entry.move is None
                and broker in entry.placement.brokers
                and not self._roster.is_at(broker, entry.placement)
            ):
                yield topic

    def _rescue(self, topic: str, now_s: float) -> bool:
        """Move a topic at rest away from dead brokers, by force. Returns whether the move has just begun."""
        entry = self._ledger.journal.topics[topic]
        if entry.move is not None or self._ledger.pending(topic_key(topic)) or self._roster.whole(entry.placement):
            return False
        target = self._roster.refuge(topic, entry.placement, entry.placement.epoch + 1)
        if target is None:
            return False
        told = self._roster.may_know_more(entry.placement)
        moved = TopicEntry(entry.placement, MoveEntry(Phase.SWITCH, target, forced=True, told=told))
        self._ledger.write_topic(topic, moved, partial(self.began, topic, Pace.EAGER))
        return True

    def _reconsider(self, move: Move) -> bool:
        """Change a move after a broker in it died. Returns whether a new decision is being written to the store."""
        target, old = move.entry.target, move.old
        if move.stage in (Stage.PREPARE, Stage.READY):
            if self._roster.whole(target) and self._roster.whole(old):
                return False
            aim = target if self._roster.whole(target) else old
            refuge = self._roster.refuge(move.topic, aim, target.epoch + 1)
            if refuge is None:
                return False
            told = tuple(sorted({*move.entry.told, *target.brokers}))
            # Giving up a move is a switch too: to a fresh epoch with the old placement, where everyone already is.
            forced = not (refuge.same_place(old) and self._roster.whole(old))
            self._redirect(move, MoveEntry(Phase.SWITCH, refuge, forced, told))
            return True
        if move.stage is Stage.SWITCH and not move.entry.forced and not self._roster.whole(old):
            self._redirect(move, msgspec.structs.replace(move.entry, forced=True))
            return True
        return False
