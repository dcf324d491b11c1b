"""Waiting: as long as it must, and no longer than it may."""

from __future__ import annotations

import asyncio

import pytest

from nearcast.testing.waiting import until, wait_until


def test_both_kinds_of_condition_are_waited_for() -> None:
    left = [3, 2, 1, 0]

    async def empty() -> bool:
        left.pop()
        return not left

    async def scenario() -> None:
        await until(empty)
        await until(lambda: not left)

    asyncio.run(scenario())
    wait_until(lambda: left.append(1) or len(left) == 3)
    assert left == [1, 1, 1]


def test_what_does_not_come_true_is_named() -> None:
    with pytest.raises(AssertionError, match=r"the move did not come true within 0\.02 s"):
        wait_until(lambda: False, "the move", within_s=0.02)
    with pytest.raises(AssertionError, match="the condition did not come true"):
        asyncio.run(until(lambda: False, within_s=0.0))
