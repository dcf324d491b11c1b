"""Delivery: which executions of one subscription go to one subscriber, each once, in order, none left out.

Two ways bring executions: notifications, which are quick and may be lost, doubled or late, and the list of executions
after a number, which is slow and complete. A delivery begins with the list and is *live* once a list had nothing more
and no notification came meanwhile that the list could not know. Whatever may have lost notifications puts it back to
the list, and so does a subscriber without room.

    CATCHING_UP --nothing more, nothing heard meanwhile--> LIVE
    LIVE, CATCHING_UP --no room--> LAGGING --room--> CATCHING_UP
    LIVE --notifications may be lost--> CATCHING_UP

`position` is the last execution handed over, or known to hold nothing for us. It only grows, so an execution at or
below it is a repeat. No clock, no waiting: the gateway asks with `list_after`, tells `listed`, and does as answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import msgspec


class State(Enum):
    CATCHING_UP = "catching up"
    LIVE = "live"
    LAGGING = "lagging"


class Step(msgspec.Struct, frozen=True):
    """What follows from a list: tell what was missed, then hand these over one by one with `handed_over`."""

    missed: tuple[int, int] | None
    executions: tuple[int, ...]


class Delivery:
    """Of one subscription to one session. `cursor`: the last execution the subscriber has."""

    def __init__(self, subscription: str, channel: str, from_execution: int, cursor: int) -> None:
        self.subscription = subscription
        self.channel = channel
        self.position = max(cursor, from_execution - 1)
        self.state = State.CATCHING_UP
        self._heard = 0  # the newest execution notified
        self._in_touch = True  # no notification was lost since the list was asked for

    def list_after(self) -> int | None:
        """Ask for the executions after this number now; None: no need."""
        if self.state is not State.CATCHING_UP:
            return None
        self._in_touch = True
        return self.position

    def notified(self, execution: int) -> bool:
        """A notification came: whether to fetch the execution, and hand it over if it `is_due` then."""
        self._heard = max(self._heard, execution)
        return self.is_due(execution)

    def is_due(self, execution: int) -> bool:
        """Whether a notified execution is the next to hand over."""
        return self.state is State.LIVE and execution > self.position

    def handed_over(self, execution: int) -> None:
        self.position = max(self.position, execution)

    def listed(self, executions: Sequence[int], upto: int, oldest: int, back: int) -> Step:
        """The list of what is after `position`: in order, perhaps only its beginning.

        `upto`: the last committed execution. `oldest`: the first one still kept. `back`: how many of the channel's
        executions the subscriber may get at most; older ones are missed.
        """
        if self.state is not State.CATCHING_UP:
            return Step(None, ())
        missed = self._missed(executions, upto, oldest, back)
        if missed is not None:
            self.position = missed[1]
        due = tuple(execution for execution in executions if execution > self.position)
        if not executions:
            self.position = max(self.position, upto)
            if self._in_touch and self._heard <= self.position:
                self.state = State.LIVE
        return Step(missed, due)

    def _missed(self, executions: Sequence[int], upto: int, oldest: int, back: int) -> tuple[int, int] | None:
        gone = oldest - 1
        too_far_back = upto - back
        if executions and executions[0] <= too_far_back:
            gone = max(gone, too_far_back)
        return (self.position, gone) if gone > self.position else None

    def lost_touch(self) -> None:
        """Notifications up to now may have been lost, or a result could not be fetched."""
        self._in_touch = False
        if self.state is State.LIVE:
            self.state = State.CATCHING_UP

    def no_room(self) -> bool:
        """The subscriber's outbox is full. Whether that is news."""
        news = self.state is not State.LAGGING
        self.state = State.LAGGING
        return news

    def room(self) -> None:
        if self.state is State.LAGGING:
            self.state = State.CATCHING_UP
