"""A move: one topic's way from one placement to the next, as the controller drives it (PROTOCOL "Controller").

    PREPARE  install the prepare record at all old members
    READY    wait until at each old member all subscribers hold the new placement, or time is up
    SWITCH   install the switch record, the fence, at all old members; no way back from here
    SETTLE   install the settled record at old and new members, the directory and whoever else was told

The journal knows only PREPARE and SWITCH: what is installed where is found out again by a new leader, which just
installs it once more. A dead broker counts as done in every stage.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from nearcast.core import record as records
from nearcast.core.journal import MoveEntry, Phase, TopicEntry
from nearcast.core.record import Record


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
        self.ready: set[str] = set()  # old members whose subscribers were all ready when last counted
        self._done: set[str] = set()
        self._sent_s: dict[str, float] = {}

    @property
    def epoch(self) -> int:
        return self.entry.target.epoch

    def targets(self, directory: str | None) -> set[str]:
        """The brokers this stage installs its record at."""
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
            if broker not in self._done and alive(broker) and now_s - self._sent_s.get(broker, -1e9) >= retry_s
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
        """Whether this stage's record is at all its targets that live."""
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
