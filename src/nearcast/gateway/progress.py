"""Progress: what a subscriber's client has received, so that each thing is received once.

Results: the last execution of each subscription. Topic messages: the last number of each publisher on each topic.
Everything comes in order from each gateway, so what is at or below the last number is a repeat.
"""

from __future__ import annotations

from collections import OrderedDict

from nearcast.gateway.frames import FromGateway, Missed, Result, TopicMessage

_PUBLISHERS = 10_000  # remembered over all topics; the one not heard for longest is forgotten


class Progress:
    """Of one client, over all its connections."""

    def __init__(self) -> None:
        self.cursors: dict[str, int] = {}
        self.repeats = 0
        self._heard: OrderedDict[tuple[str, str], int] = OrderedDict()

    def is_new(self, frame: FromGateway) -> bool:
        """Whether the frame is no repeat; it counts as received then."""
        match frame:
            case Result():
                new = self._advance(frame.subscription, frame.execution)
            case Missed():
                new = self._advance(frame.subscription, frame.upto)
            case TopicMessage():
                new = self._hear((frame.topic, frame.publisher), frame.sequence)
            case _:
                return True
        self.repeats += not new
        return new

    def forget(self, subscription: str) -> None:
        """It was unsubscribed; a later one of the same parameters starts anew."""
        self.cursors.pop(subscription, None)

    def _advance(self, subscription: str, execution: int) -> bool:
        new = execution > self.cursors.get(subscription, 0)
        if new:
            self.cursors[subscription] = execution
        return new

    def _hear(self, line: tuple[str, str], sequence: int) -> bool:
        last = self._heard.pop(line, 0)
        self._heard[line] = max(sequence, last)
        if len(self._heard) > _PUBLISHERS:
            self._heard.popitem(last=False)
        return sequence > last
