"""Moves and orders: how the controller takes a topic from one placement to the next (PROTOCOL "Controller").

A `Move` is one topic's way to its next placement:

    PREPARE  install the prepare record at all old members
    READY    wait until at each old member all subscribers hold the new placement, or time is up
    SWITCH   install the switch record, the fence, at all old members; no way back from here
    SETTLE   install the settled record at old and new members, the directory and every other broker that knew

The journal knows only PREPARE and SWITCH. A new leader does not know what is installed where, so it simply installs it
again. A dead broker counts as done in every stage.

`Orders` are in flight to agents. Each is repeated until it is answered. Needs are stated every tick ("install this
there"); an order already in flight is not sent twice within the retry time. So a lost order, a lost answer and a
restarted agent all look the same, and heal the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from enum import StrEnum

from nearcast.core.model import placement as records
from nearcast.core.model.journal import MoveEntry, Phase, TopicEntry
from nearcast.core.model.placement import Record
from nearcast.core.model.settings import NEVER_S
from nearcast.core.wire.bus import Answer, Order


class Stage(StrEnum):
    PREPARE = "prepare"
    READY = "ready"
    SWITCH = "switch"
    SETTLE = "settle"
    SETTLED = "settled"  # everything is installed; the journal does not say so yet


_AFTER = {Stage.PREPARE: Stage.READY, Stage.SWITCH: Stage.SETTLE, Stage.SETTLE: Stage.SETTLED}


class Move:
    def __init__(self, topic: str, entry: TopicEntry, now_s: float, not_before_s: float = 0.0) -> None:
        assert entry.move is not None
        self.topic = topic
        self.old = entry.placement
        self.entry: MoveEntry = entry.move
        self.stage = Stage.PREPARE if entry.move.phase is Phase.PREPARE else Stage.SWITCH
        self.since_s = now_s  # when the stage began
        self.not_before_s = not_before_s
        self.ready: set[str] = set()  # old members whose subscribers were all ready at the last count
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

    def installed(self, broker: str, version: int, term: int) -> None:
        if version >= self.record(term).version:
            self._done.add(broker)

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


OnAnswer = Callable[[Answer, float], None]
OUTSTANDING_MAX = 10_000


# --- orders


class Orders:
    def __init__(self, term: int, retry_s: float) -> None:
        self.outgoing: list[tuple[str, Order]] = []
        self._retry_s = retry_s
        self._number = term << 32  # so that an answer to an earlier leader's order matches none of ours
        self._sent_s: dict[Hashable, float] = {}
        self._waiting: dict[int, tuple[Hashable, str, OnAnswer]] = {}

    def need(self, key: Hashable, broker: str, make: Callable[[int], Order], on_answer: OnAnswer, now_s: float) -> None:
        """Send the order unless one with the same key was sent a moment ago."""
        if now_s - self._sent_s.get(key, NEVER_S) < self._retry_s:
            return
        self._number += 1
        self._sent_s[key] = now_s
        self._waiting[self._number] = (key, broker, on_answer)
        if len(self._waiting) > OUTSTANDING_MAX:
            key, _, _ = self._waiting.pop(next(iter(self._waiting)))
            self._sent_s.pop(key, None)
        self.outgoing.append((broker, make(self._number)))

    def answered(self, answer: Answer, now_s: float) -> None:
        waiting = self._waiting.pop(answer.order, None)
        if waiting is None or waiting[1] != answer.broker:
            return  # answered twice, or an order of an earlier leader
        key, _, on_answer = waiting
        self._sent_s.pop(key, None)
        on_answer(answer, now_s)
