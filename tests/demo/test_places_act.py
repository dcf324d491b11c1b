"""The third act of the demo on real servers: topics follow their players, or the summary says that they did not."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from nearcast.core.model.membership import Ring
from nearcast.demo import places
from nearcast.demo.delays import Side
from nearcast.demo.places import BOUND_S, HOMES, SITES, TOPICS, PlacesAct, PlacesPlan, PlacesSummary
from nearcast.testing.network.sites import WORLD


def play(plan: PlacesPlan) -> tuple[PlacesSummary, PlacesAct]:
    async def scenario() -> tuple[PlacesSummary, PlacesAct]:
        act = PlacesAct(plan, tell=print)
        return await act.run(), act

    return asyncio.run(scenario())


def test_hashing_puts_one_twin_of_each_group_on_each_broker() -> None:
    ring = Ring(SITES)
    found = Counter(
        (series.group, ring.owner(topic.encode())) for topic, series in TOPICS.items() if series.side is Side.HASHED
    )
    assert found == dict.fromkeys(((group, site) for group in HOMES for site in SITES), 1)


def test_only_the_own_broker_keeps_the_bound() -> None:
    for home in HOMES.values():
        ways_s = {site: 2 * WORLD.delay_s(home, site) for site in SITES}
        assert [site for site, way_s in ways_s.items() if way_s < BOUND_S] == [home]


@pytest.mark.live
@pytest.mark.xdist_group("heavy")
def test_topics_with_a_bound_follow_and_their_twins_stay() -> None:
    summary, act = play(PlacesPlan(before_s=1.0, after_s=3.0))
    assert summary.missed == []
    assert summary.exact, summary
    assert act.sites == {"red": "tokyo", "blue": "paris"}
    for topic, series in TOPICS.items():
        placement = act.topics[topic].placement
        stays = series.side is Side.HASHED
        where = Ring(SITES).owner(topic.encode()) if stays else act.sites[series.group]
        assert placement is not None
        assert placement.brokers == (where,)
    assert summary.followed_s is not None
    assert summary.during is not None
    assert summary.during.bound.p95_ms is not None
    assert summary.during.bound.p95_ms > summary.bound_ms  # they were far away for a while
    assert summary.after is not None
    assert (summary.after.bound.within_share or 0.0) > 2 * (summary.after.hashed.within_share or 0.0)
    said = [event.text for event in act.events_since(0)]
    for text in ("the two groups swap places", "(bound: worst_s", "; predicted"):
        assert any(text in line for line in said), (text, said)
    assert not any("90 % within" in line for line in said)


@pytest.mark.live
def test_topics_that_do_not_follow_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "CONTROLLER_OPTIONS", ())  # no policy: hashing alone
    monkeypatch.setattr(places, "SETTLE_S", 1.0)
    summary, _ = play(PlacesPlan())
    assert len(summary.missed) == 1
    assert summary.missed[0].startswith("not within 1 s: topics with a bound come to their players at the beginning")
    assert "red.arena" in summary.missed[0]
    assert (summary.before, summary.followed_s, summary.back_s, summary.exact) == (None, None, None, True)
