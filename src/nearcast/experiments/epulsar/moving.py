"""Moves of many topics through the console, a limited number in flight, with the times of each."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence

import msgspec

from nearcast.core.model.placement import Mode
from nearcast.core.wire.views import TopicState
from nearcast.errors import Unavailable
from nearcast.runtime.console import Console

LOOK_S = 0.005  # how often the controller is asked how far the moves are: the times are no finer
MOVES_MOST_S = 120.0
RELEASED = "settle"  # the stage after the old broker has let go of the topic
RELEASING = "switch"


class Moved(msgspec.Struct):
    """One move. Unix times, as this process saw them."""

    topic: str
    queued_s: float  # when it could have begun
    begun_s: float
    releasing_s: float = 0.0  # the old broker was told to release the topic
    released_s: float = 0.0  # and has answered
    ended_s: float = 0.0  # everyone knows

    @property
    def move_s(self) -> float:
        """The whole move, without the wait for its turn."""
        return self.ended_s - self.begun_s

    @property
    def queued_move_s(self) -> float:
        return self.ended_s - self.queued_s

    @property
    def release_s(self) -> float:
        """From "release" to "release complete": the paper's migration time, without acquisition and reconnection."""
        return self.released_s - self.releasing_s


async def move_topics(console: Console, topics: Sequence[str], broker: str, in_flight: int) -> list[Moved]:
    """Move all topics to the broker; a move begins when fewer than `in_flight` are under way."""
    queued_s = time.time()
    waiting, moving = deque(topics), dict[str, Moved]()
    goals: dict[str, int] = {}
    ended: list[Moved] = []
    while waiting or moving:
        if time.time() - queued_s > MOVES_MOST_S:
            raise Unavailable(f"{len(waiting) + len(moving)} moves have not ended within {MOVES_MOST_S:g} s")
        some = [waiting.popleft() for _ in range(min(in_flight - len(moving), len(waiting)))]
        if some:
            begun_s = time.time()
            moving |= {topic: Moved(topic, queued_s, begun_s) for topic in some}
            states = await console.move_all(dict.fromkeys(some, (Mode.SINGLE, (broker,))), wait=False)
            goals |= {topic: (state.target or state.placement).epoch for topic, state in states.items()}
        state = await console.state(*moving)
        now_s = time.time()
        for topic, moved in list(moving.items()):
            if _note(moved, state.topics[topic], goals[topic], now_s):
                ended.append(moving.pop(topic))
        await asyncio.sleep(LOOK_S)
    return ended


def _note(moved: Moved, state: TopicState, epoch: int, now_s: float) -> bool:
    """Note how far the move is; whether it has ended."""
    over = state.target is None and state.placement.epoch >= epoch
    if not moved.releasing_s and (over or state.stage in (RELEASING, RELEASED)):
        moved.releasing_s = now_s
    if not moved.released_s and (over or state.stage == RELEASED):
        moved.released_s = now_s
    if over:
        moved.ended_s = now_s
    return over
