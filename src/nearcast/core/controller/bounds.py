"""Bounds of topics: set by people, kept in the membership, so that they survive a loss of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nearcast.core.model.bounds import BOUNDS_MAX
from nearcast.core.model.journal import MEMBERSHIP_KEY
from nearcast.core.model.names import TOPIC_BYTES_MAX
from nearcast.core.wire import bus

if TYPE_CHECKING:
    from nearcast.core.controller.members import Members
    from nearcast.core.controller.office import Office

WAITING_MAX = 1000


class SetBounds:
    """Sets bounds, one membership for all requests that wait."""

    def __init__(self, office: Office, members: Members) -> None:
        self._office = office
        self._ledger = office.ledger
        self._members = members
        self._waiting: dict[str, bus.SetBound] = {}

    def heard(self, message: bus.SetBound, now_s: float) -> None:
        problem = self._problem(message)
        if problem:
            self._answer(message.request, problem)
        else:
            self._waiting[message.request] = message
            self.tick(now_s)

    def _problem(self, message: bus.SetBound) -> str:
        bounds = self._ledger.journal.membership.bounds
        if not message.topics or len(message.topics.encode("utf-8", "surrogatepass")) > TOPIC_BYTES_MAX:
            return f"a topic or pattern must have 1 to {TOPIC_BYTES_MAX} bytes"
        if message.bound is None and message.topics not in bounds:
            return f"{message.topics!r} has no bound of its own; bounds are set for: {', '.join(bounds) or 'nothing'}"
        if message.bound is not None and message.topics not in bounds and len(bounds) >= BOUNDS_MAX:
            return f"there are {BOUNDS_MAX} bounds: remove one, or set one for a pattern"
        if len(self._waiting) >= WAITING_MAX:
            return f"the controller has {WAITING_MAX} requests waiting: try again later"
        return ""

    def tick(self, now_s: float) -> None:
        if not self._waiting or self._ledger.pending(MEMBERSHIP_KEY):
            return
        waiting, self._waiting = self._waiting, {}
        membership = self._ledger.journal.membership
        bounds = dict(membership.bounds)
        for message in waiting.values():
            if message.bound is not None:
                bounds[message.topics] = message.bound
            else:
                bounds.pop(message.topics, None)
        if bounds == membership.bounds:
            self._done(waiting)
            return
        after = self._members.next_membership(membership, dict(membership.brokers), membership.ring)
        changed = msgspec.structs.replace(after, bounds=bounds)
        self._ledger.write({MEMBERSHIP_KEY: changed}, lambda at_s: self._done(waiting))

    def _done(self, requests: dict[str, bus.SetBound]) -> None:
        for request in requests:
            self._answer(request)

    def _answer(self, request: str, problem: str = "") -> None:
        state = self._office.state(request, problem)
        self._office.reply(msgspec.structs.replace(state, bounds=self._ledger.journal.membership.bounds))
