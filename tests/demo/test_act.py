"""What the acts of the demo share: topics that are watched, events, and what verdicts come to."""

from __future__ import annotations

import asyncio

import pytest

from nearcast.core.model.placement import Mode, Placement
from nearcast.demo.act import EVENTS_KEPT, Kind, judged, noticed, percentiles_ms
from nearcast.demo.moves import MovesAct, MovesPlan
from nearcast.testing.audit import Verdict
from nearcast.testing.load import WatchedTopic

HERE = Placement(5, Mode.SINGLE, ("b1",))


@pytest.mark.parametrize(
    ("after", "moves", "mode_changes", "stays"),
    [
        (Placement(6, Mode.SINGLE, ("b2",)), 1, 0, False),
        (Placement(9, Mode.ALL_SUBSCRIBERS, ("b1", "b2")), 1, 1, False),
        (Placement(6, Mode.SINGLE, ("b1",)), 0, 0, False),  # a new epoch at the same place
        (Placement(5, Mode.SINGLE, ("b2",)), 0, 0, True),  # old news
    ],
)
def test_a_topic_has_moved_if_a_later_epoch_is_elsewhere(
    after: Placement, moves: int, mode_changes: int, stays: bool
) -> None:
    topic = WatchedTopic(1, placement=HERE)
    before = topic.moved_to(after)
    assert (topic.moves, topic.mode_changes) == (moves, mode_changes)
    assert before == (HERE if moves else None)
    assert topic.placement == (HERE if stays else after)


def test_the_first_place_is_no_move() -> None:
    topic = WatchedTopic(1)
    assert topic.moved_to(HERE) is None
    assert (topic.placement, topic.moves) == (HERE, 0)


def test_events_come_in_the_order_of_their_times_and_old_ones_are_dropped() -> None:
    async def scenario() -> MovesAct:
        return MovesAct(MovesPlan(), tell=print)

    act = asyncio.run(scenario())
    for second in range(EVENTS_KEPT + 10):
        act._happened(f"event {second}", Kind.MOVE, float(second))
    act._happened("heard of late", Kind.DECISION, 50.5)
    fresh = act.events_since(EVENTS_KEPT)
    assert [event.at_s for event in fresh] == [50.5, *range(EVENTS_KEPT, EVENTS_KEPT + 10)]
    assert len(act.events_since(0)) == EVENTS_KEPT
    assert act.events_since(act.happened) == []


def test_what_is_on_its_way_is_lost_only_at_the_end() -> None:
    verdict = Verdict(lost_prefix=1, lost_middle=2, lost_suffix=4, duplicated=8, gaps=16, examples=["x"])
    assert noticed(verdict) == 2 + 8 + 16
    both = judged([verdict, Verdict(reordered=1, examples=["y"])])
    assert (both["lost"], both["duplicated"], both["reordered"], both["exact"]) == (7, 8, 1, False)
    assert both["examples"] == ["x", "y"]
    assert judged([Verdict(delivered=3)])["exact"]


def test_latencies_are_given_in_milliseconds() -> None:
    assert percentiles_ms(number / 1e3 for number in range(1, 101)) == {"p50_ms": 50.0, "p99_ms": 99.0}
    assert percentiles_ms([]) == {"p50_ms": None, "p99_ms": None}
