"""The console asks for many topics in parts, and puts them together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from random import Random

from nearcast.core.controller.leader import Leader, LeaderSettings
from nearcast.core.controller.ledger import Ledger
from nearcast.core.model.journal import Journal, TopicEntry
from nearcast.core.model.placement import single
from nearcast.core.wire import bus
from nearcast.runtime.console import Console

TOPICS = [f"t{number}" for number in range(2 * bus.SHOWN_MAX + 500)]


def leader(term: int, topics: Iterable[str]) -> Leader:
    journal = Journal(topics={topic: TopicEntry(single(6, "b1", 5)) for topic in topics})
    return Leader(
        Ledger(50, journal, term), leader="c1", store_url="", settings=LeaderSettings(dice=Random(1)), now_s=0.0
    )


class Told(Console):
    """Asks leaders that stand beside it, each for one answer, the last one for all others."""

    def __init__(self, *leaders: Leader) -> None:
        super().__init__("redis://nobody")
        self._leaders = list(leaders)
        self.asked = 0

    async def _ask(self, make: Callable[[str], bus.Request], timeout_s: float) -> bus.State:
        leader = self._leaders.pop(0) if len(self._leaders) > 1 else self._leaders[0]
        self.asked += 1
        leader.heard(make("me.1"), 0.0)
        state = bus.decode_state(leader.office.outbox.pop()[1])
        assert state is not None
        return state


def test_all_topics_are_put_together() -> None:
    console, parts = Told(leader(1, TOPICS)), list[int]()
    state = asyncio.run(console.state(on_part=parts.append))
    assert list(state.topics) == TOPICS
    assert state.next_start == 0
    assert console.asked == 3
    assert parts == [bus.SHOWN_MAX, 2 * bus.SHOWN_MAX]


def test_a_new_leader_in_the_middle_is_asked_from_the_beginning() -> None:
    """It has read the journal in another order: what it has at this place may have been listed already."""
    console = Told(leader(1, TOPICS), leader(2, reversed(TOPICS)))
    state = asyncio.run(console.state())
    assert sorted(state.topics) == sorted(TOPICS)
    assert state.term == 2
    assert console.asked == 5  # the first of one, one that was in vain, three of the other


def test_named_topics_are_asked_for_in_parts_too() -> None:
    console = Told(leader(1, TOPICS))
    assert list(asyncio.run(console.state(*TOPICS[::-1])).topics) == TOPICS[::-1]
    assert console.asked == 3
