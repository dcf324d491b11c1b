"""The screens of `nearcast demo` at the sizes people have, and the lines where there is no screen."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Callable

import pytest
from rich.console import Console

from nearcast.cli.demo_views.look import Look
from nearcast.cli.demo_views.moves import MovesLook
from nearcast.cli.demo_views.places import HISTORY_S, PlacesLook
from nearcast.cli.demo_views.policy import PolicyLook
from nearcast.cli.demo_views.view import View
from nearcast.core.model.membership import Ring
from nearcast.core.model.placement import Mode, Placement
from nearcast.core.wire.bus import Report
from nearcast.core.wire.views import BrokerView
from nearcast.demo.act import Act, Kind, Summary
from nearcast.demo.delays import Side
from nearcast.demo.moves import GAMES, SITES, MovesAct, MovesPlan
from nearcast.demo.places import SERIES, TOPICS, Moments, PlacesAct, PlacesPlan
from nearcast.demo.policy import CAPACITY_BYTES_PER_S, SCORES, VOTES, PolicyAct, PolicyPlan

FOUR = ("b1", "rented-1", "rented-2", "rented-3")


def report(broker: str, output_bytes_per_s: float) -> Report:
    return Report(broker, 0.0, 1.0, output_bytes_per_s, 1_234_567.0, 50, 10_000_000, 0.123, 0.0)


def busy_moves() -> tuple[Act[Summary], Look]:
    """An act that never ran, filled with the widest things it can show."""
    act = MovesAct(MovesPlan(), tell=print)
    for game in act.topics.values():
        game.placement = Placement(123, Mode.ALL_SUBSCRIBERS, ("paris", "virginia"))
        game.target, game.moves = Placement(0, Mode.ALL_PUBLISHERS, ("paris", "virginia")), 123
        game.recent.add(act.now_s, 2.345)
    for site in SITES:
        act.brokers[site] = BrokerView("redis://h", site, "member", alive=True, report=report(site, 1_234_567.0))
    for _ in range(40):
        act._happened(f"game.virginia: {'x' * 100}", Kind.MOVE, 60.0)
    return act, MovesLook(act)


def busy_policy() -> tuple[Act[Summary], Look]:
    act = PolicyAct(PolicyPlan(), tell=print)
    act.scene = max(act.plan.scenes, key=lambda scene: len(scene.title))
    for topic in act.topics.values():
        topic.placement = Placement(7, Mode.SINGLE, ("b1",))
        topic.recent.add(act.now_s, 2.345)
    act.topics[VOTES].placement = Placement(8, Mode.ALL_SUBSCRIBERS, FOUR)
    act.topics[SCORES].target = Placement(8, Mode.ALL_PUBLISHERS, FOUR)
    loads = zip(FOUR, ("member", "joining", "leaving", "left"), (1.11, 0.62, 0.25, 0.9), strict=True)
    for broker, state, ratio in loads:
        seen = report(broker, ratio * CAPACITY_BYTES_PER_S)
        act.brokers[broker] = BrokerView("redis://h", "local", state, True, seen, CAPACITY_BYTES_PER_S, True)
    act._happened(act.scene.title, Kind.SCENE, 59.0)
    for _ in range(40):
        act._happened(f"votes -> all_subscribers on {', '.join(FOUR)} ({'x' * 100})", Kind.DECISION, 60.0)
    return act, PolicyLook(act)


def busy_places(at_s: float = 61.0) -> tuple[Act[Summary], Look]:
    """All topics with a bound are on one broker, after the swap; in the last second they were near again."""
    act = PlacesAct(PlacesPlan(), tell=print)
    act._begun_s, act._ended_s = 0.0, at_s
    for topic, series in TOPICS.items():
        broker = "virginia" if series.side is Side.BOUND else Ring(SITES).owner(topic.encode())
        act.topics[topic].placement = Placement(7, Mode.SINGLE, (broker,))
    for series in SERIES:
        for second in range(int(at_s)):
            back = series.side is Side.BOUND and second == int(at_s) - 1
            act.timeline.note(series, second + 0.5, 0.011 if back else 2.345)
    act.moments.settled_s, act.moments.swapped_s = 5.0, 8.0
    for _ in range(40):
        act._happened(f"red.arena -> single on paris ({'x' * 100})", Kind.DECISION, 60.0)
    return act, PlacesLook(act)


def screen(make: Callable[[], tuple[Act[Summary], Look]], width: int, height: int) -> list[str]:
    async def scenario() -> list[str]:
        shown = io.StringIO()
        console = Console(file=shown, width=width, height=height, color_system=None)
        console.print(make()[1].screen(console.size))
        return shown.getvalue().splitlines()

    return asyncio.run(scenario())


@pytest.mark.parametrize("make", [busy_moves, busy_policy, busy_places])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30), (120, 40)])
def test_the_screen_fits_the_terminal(make: Callable[[], tuple[Act[Summary], Look]], width: int, height: int) -> None:
    lines = screen(make, width, height)
    assert len(lines) == height - 1
    assert max(map(len, lines)) <= width
    assert [line for line in lines if "…" in line] == [line for line in lines if "60 s" in line]  # only events


@pytest.mark.parametrize(("width", "height"), [(80, 24), (100, 30)])
def test_moves_show_every_game_and_every_site(width: int, height: int) -> None:
    lines = screen(busy_moves, width, height)
    assert all(any(line.startswith(topic) and "> paris+virginia" in line for line in lines) for topic in GAMES)
    assert all(any(line.startswith(site) and "1234.6" in line for line in lines) for site in SITES)


def test_the_policy_shows_load_ratios_modes_and_decisions() -> None:
    lines = screen(busy_policy, 80, 24)
    rows = {line.split()[0]: line for line in lines if line.strip()}
    assert rows["b1"].split() == ["b1", "member", "█" * 20, "1.11", "333", "6"]
    assert rows["rented-1"].split() == ["rented-1", "joining", "█" * 12 + "░" * 8, "0.62", "186", "1"]
    assert rows["rented-2"].split() == ["rented-2", "leaving", "█" * 5 + "░" * 15, "0.25", "75", "1"]
    assert rows["rented-3"].split() == ["rented-3", "left"]  # its last report is of no interest
    assert "all_subscribers b1+rented-1+rented-2+rented-3 " in rows["votes"]
    assert "> b1+rented-1+rented-2+rented-3 " in rows["scores"]
    assert sum("votes -> all_subscribers on b1, rented-1" in line for line in lines) == 4
    assert sum("a crowd comes to watch" in line for line in lines) == 1  # as what goes on, not as an event


def test_places_show_both_sides_over_time_and_what_each_broker_carries() -> None:
    lines = screen(busy_places, 80, 24)
    assert "swapped 53 s ago: 6 of 6 topics with a bound are not there yet" in lines
    rows = [line for line in lines if line.startswith(("red in", "blue in"))]
    bound, hashed = "█" * (HISTORY_S - 1) + "▁", "█" * HISTORY_S
    assert [row.split()[-1] for row in rows] == [bound, hashed, bound, hashed]
    assert rows[0].split()[:-1] == ["red", "in", "paris", "with", "a", "bound", "11", "2345", "50%"]
    virginia = next(line for line in lines if line.startswith("virginia"))
    assert virginia.split(maxsplit=1)[1].startswith("red arena court maze, blue arena court maze red arena, blue maze")


@pytest.mark.parametrize(
    ("moments", "said"),
    [
        ({}, "the players have come: 6 of 6 topics with a bound are not there yet"),
        ({"settled_s": 5.0}, "the topics with a bound are near their players"),
        (
            {"settled_s": 5.0, "swapped_s": 8.0, "followed_s": 14.2},
            "swapped: the topics with a bound followed in 6.2 s",
        ),
    ],
)
def test_places_say_how_far_the_act_is(moments: dict[str, float], said: str) -> None:
    def at_that_moment() -> tuple[Act[Summary], Look]:
        act, look = busy_places()
        act.moments = Moments(**moments)  # type: ignore[attr-defined]
        return act, look

    assert said in screen(at_that_moment, 80, 24)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (busy_moves, [f"        {topic}" for topic in GAMES]),
        (
            busy_policy,
            [
                "  59 s  a crowd comes",
                "  60 s  votes -> all_subscribers",
                "load ratios: b1 1.11, rented-1 0.62, rented-2 0.25\n",
                "votes b1+rented-1+rented-2+rented-3, scores > b1+",
            ],
        ),
        (
            busy_places,
            [
                "One way: paris-virginia 40 ms",
                "  60 s  red.arena -> single on paris",
                "red in paris  with a bound  p50   11 ms  p95 2345 ms   50% within the bound",
            ],
        ),
    ],
)
def test_lines_for_pipes(
    make: Callable[[], tuple[Act[Summary], Look]],
    expected: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nearcast.cli.demo_views.view.EVENTS_S", 0.01)
    monkeypatch.setattr("nearcast.cli.demo_views.view.LINES_S", 0.0)

    async def scenario() -> None:
        act, look = make()
        act.begun.set()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(View(Console(force_terminal=False)).show(act, look), 0.1)

    asyncio.run(scenario())
    shown = capsys.readouterr().out
    for text in (*expected, "noticed by subscribers: nothing", "ubscribers must not notice."):
        assert text in shown
    assert shown.count("votes -> all_subscribers") in (0, 40)  # each event once
