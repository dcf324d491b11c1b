"""Orders on their way to agents: each is sent again until it is answered, and asked for again by whoever needs it.

Needs are stated every tick ("install this there"); an order that is already on its way is not sent twice within the
retry time. So a lost order, a lost answer and a restarted agent all look the same, and heal the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from nearcast.core.bus import Answer, Order

OnAnswer = Callable[[Answer, float], None]
OUTSTANDING_MAX = 10_000


class Orders:
    def __init__(self, term: int, retry_s: float) -> None:
        self.outgoing: list[tuple[str, Order]] = []
        self._retry_s = retry_s
        self._number = term << 32  # so that an answer to an earlier leader's order fits none of ours
        self._sent_s: dict[Hashable, float] = {}
        self._waiting: dict[int, tuple[Hashable, str, OnAnswer]] = {}

    def need(self, key: Hashable, broker: str, make: Callable[[int], Order], on_answer: OnAnswer, now_s: float) -> None:
        """Send the order unless one with the same key was sent a moment ago."""
        if now_s - self._sent_s.get(key, -1e9) < self._retry_s:
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
