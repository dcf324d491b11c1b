"""A topic that is watched: where it is, how often it has moved, and what its last messages took."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from nearcast.core.message import Event, Message
from nearcast.core.placement import Placement
from nearcast.testbed.recent import Recent


@dataclass(slots=True)
class WatchedTopic:
    """One topic as a view shows it. `target`: where it is being moved to."""

    subscribers: int  # those whose messages are in `recent`
    placement: Placement | None = None
    target: Placement | None = None
    moves: int = 0
    mode_changes: int = 0
    recent: Recent = field(default_factory=Recent)

    def moved_to(self, after: Placement) -> Placement | None:
        """Note where the controller says the topic is; returns where it was, if it has moved."""
        before = self.placement
        if before is not None and after.epoch <= before.epoch:
            return None
        self.placement = after
        if before is None or before.same_place(after):
            return None  # found out, or given a record: nothing has moved
        self.moves += 1
        self.mode_changes += before.mode is not after.mode
        return before

    def saw(self, events: Iterable[Event]) -> None:
        for event in events:
            if type(event) is Message:
                self.recent.add(event.received_at, event.latency_s)
