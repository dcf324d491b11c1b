"""A lane: one broker an outflow writes to in one epoch (PROTOCOL, publisher rules 4, 7 and 9).

Replies on a lane come in order, so it needs only to know how many have come.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from nearcast.core.refusals import refused

if TYPE_CHECKING:
    from nearcast.core.backend import ClientLink
    from nearcast.core.outflow import Outflow


class Lane:
    __slots__ = ("broker", "counted", "link", "outflow", "receivers", "retired", "sent", "unleased")

    def __init__(self, outflow: Outflow, broker: str, counted: int) -> None:
        self.outflow = outflow
        self.broker = broker
        self.link: ClientLink | None = None  # set while the topic may be published there
        self.sent = self.counted = counted  # sequence numbers
        self.receivers: deque[int] = deque()  # of counted messages other lanes have not counted yet
        self.unleased: list[int] = []  # replies that came while the broker had no lease
        self.retired = False

    def replied(self, receivers: list[int], now_s: float) -> None:
        if self.retired:
            return
        link = self.link
        if link is None or now_s > link.lease_until_s or self.unleased:
            self.unleased += receivers
            if link is not None:
                link.lease_waiters[self.outflow] = None
            self.outflow.client.attend(self.outflow)
        else:
            self.outflow.count(self, receivers)

    def refused(self, error: str, now_s: float) -> None:
        if not self.retired:
            self.outflow.refuse(self.counted + len(self.unleased) + 1, refused(self.broker, "the message", error))
            self.replied([0], now_s)

    def count_leased(self, now_s: float) -> None:
        """A beat came after all: the broker had not been given up, so the replies count."""
        if self.unleased and self.link is not None and now_s <= self.link.lease_until_s:
            receivers, self.unleased = self.unleased, []
            self.outflow.count(self, receivers)

    def reset(self) -> None:
        """The connection is gone: what was not counted is sent again."""
        self.outflow.tried = max(self.outflow.tried, self.sent)
        self.link = None
        self.sent = self.counted
        self.unleased.clear()
