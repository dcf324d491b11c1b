"""The command line on a whole cluster that `nearcast up` runs."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nearcast import connect
from nearcast.cli import shared
from nearcast.cli.app import app
from nearcast.testing.waiting import until, wait_until

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("cli")]


def nearcast(cluster: dict[str, Any], *arguments: str, url: str = "") -> Result:
    return CliRunner().invoke(app, list(arguments), env={"NEARCAST_URL": url or cluster["brokers"]["b1"]})


def answer(cluster: dict[str, Any], *arguments: str, url: str = "") -> Any:
    result = nearcast(cluster, *arguments, "--output", "json", url=url)
    assert (result.exit_code, result.stderr) == (0, ""), result.stderr
    return json.loads(result.stdout)


def test_brokers_are_shown_with_their_load(cluster: dict[str, Any]) -> None:
    wait_until(
        lambda: all(view["load"] for view in answer(cluster, "brokers")["brokers"].values()), "all have reported"
    )
    brokers = answer(cluster, "brokers")["brokers"]
    assert {name: view["url"] for name, view in brokers.items()} == cluster["brokers"]
    assert {(view["state"], view["alive"], view["site"]) for view in brokers.values()} == {("member", True, "local")}
    assert all(view["load"]["connections"] >= 1 for view in brokers.values())
    table = nearcast(cluster, "brokers").stdout
    assert all(name in table and url in table for name, url in cluster["brokers"].items())


def test_a_topic_is_moved_and_shown(cluster: dict[str, Any]) -> None:
    before = answer(cluster, "topic", "show", "moved")["topics"]["moved"]
    assert before["planned"] is False
    (home,) = before["brokers"]
    away = "b2" if home != "b2" else "b3"
    moved = answer(cluster, "topic", "move", "moved", "--to", away)
    assert (moved["topic"], moved["mode"], moved["brokers"]) == ("moved", "single", [away])
    assert moved["epoch"] > before["epoch"]
    assert (moved["planned"], moved["target"]) == (True, None)
    shown = answer(cluster, "topic", "show", "moved")["topics"]["moved"]
    assert (shown.pop("distances"), shown.pop("bound")) == (None, None)
    assert {"topic": "moved", **shown} == moved
    assert away in nearcast(cluster, "topic", "show").stdout


def test_brokers_say_how_far_they_are(cluster: dict[str, Any]) -> None:
    def measured() -> bool:
        found = answer(cluster, "brokers", "distances")["round_trips_s"]
        return all(found.get(name, {}).keys() == cluster["brokers"].keys() - {name} for name in cluster["brokers"])

    wait_until(measured, "all agents have measured all others")
    assert " 0." in nearcast(cluster, "brokers", "distances").stdout


def test_a_topic_shows_how_far_its_clients_are(cluster: dict[str, Any]) -> None:
    async def scenario() -> None:
        urls = list(cluster["brokers"].values())
        async with connect(urls[0]) as ours, connect(urls[1]) as theirs:
            subscription = await theirs.subscribe("far.1")
            await ours.publish("far.1", b"x")

            async def known() -> bool:
                shown = await asyncio.to_thread(answer, cluster, "topic", "show", "far.1")
                return shown["topics"]["far.1"]["distances"] is not None

            await until(known, "the topic's clients are known")
            subscription.close()

    asyncio.run(scenario())


def test_a_bound_is_set_shown_and_removed(cluster: dict[str, Any]) -> None:
    assert "no topic has a bound" in nearcast(cluster, "topic", "bound").stderr
    bounds = answer(cluster, "topic", "bound", "swarm.*", "40ms", "--percentile", "90")["bounds"]
    assert bounds == {"swarm.*": {"seconds": 0.04, "percentile": 90.0}}
    shown = nearcast(cluster, "topic", "show", "swarm.7").stdout
    assert "40 ms for 90 %" in " ".join(shown.split())
    assert answer(cluster, "topic", "bound", "swarm.*", "--remove")["bounds"] == {}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("t",), "write a number and a unit, such as 40ms"),
        (("t", "40"), "write a number and a unit, such as 40ms"),
        (("t", "90s"), "a bound must be between 0.1 ms and 60 s"),
        (("t", "40ms", "--percentile", "100"), "a percentile must be above 0 and below 100"),
        (("t", "40ms", "--remove"), "--remove takes no time"),
        (("t", "--remove"), "'t' has no bound of its own"),
    ],
)
def test_bounds_that_make_no_sense_are_explained(
    cluster: dict[str, Any], arguments: tuple[str, ...], problem: str
) -> None:
    refused = nearcast(cluster, "topic", "bound", *arguments)
    assert refused.exit_code != 0
    assert problem in " ".join(refused.stderr.split())


def test_a_topic_is_replicated_and_stands_in_the_plan(cluster: dict[str, Any]) -> None:
    version = answer(cluster, "plan", "show")["version"]
    arguments = ("topic", "move", "hot", "--to", "b1,b2", "--mode", "all_subscribers")
    assert answer(cluster, *arguments)["brokers"] == ["b1", "b2"]
    # The store's URL is as good as any broker's.
    plan = answer(cluster, "plan", "show", url=cluster["store"])
    assert plan["version"] > version
    assert plan["topics"]["hot"]["mode"] == "all_subscribers"
    assert f"version {plan['version']}, led by {plan['leader']}" in nearcast(cluster, "plan", "show").stdout


def test_a_lazy_move_that_is_not_waited_for_ends_by_itself(cluster: dict[str, Any]) -> None:
    begun = answer(cluster, "topic", "move", "lazy", "--to", "b1,b3", "--mode", "all_publishers", "--lazy", "--no-wait")
    assert begun["target"]["brokers"] == ["b1", "b3"]

    def shown() -> Any:
        return answer(cluster, "topic", "show", "lazy")["topics"]["lazy"]

    wait_until(lambda: not shown()["target"], "the move has ended")
    assert shown()["brokers"] == ["b1", "b3"]


@pytest.mark.parametrize(
    ("placement", "said"),
    [
        (("--to", "b9"), "unknown broker 'b9'; the cluster has: b1, b2, b3"),
        (("--to", "b1,b2"), "choose all_subscribers or all_publishers"),
        (("--to", "b1,b1", "--mode", "all_publishers"), "names a broker twice"),
    ],
)
def test_a_placement_that_cannot_be_is_a_usage_error(
    cluster: dict[str, Any], placement: tuple[str, ...], said: str
) -> None:
    result = nearcast(cluster, "topic", "move", "t", *placement)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_without_a_controller_the_command_says_what_to_start(
    cluster: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "ASK_S", 0.5)
    controller = cluster["pids"]["controller-0"]
    os.kill(controller, signal.SIGSTOP)
    try:
        result = nearcast(cluster, "topic", "move", "t", "--to", "b1")
    finally:
        os.kill(controller, signal.SIGCONT)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no controller answered" in result.stderr
    assert "start `nearcast controller`" in result.stderr
