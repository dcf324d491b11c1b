"""Figures 8 and 9: small runs on real servers, and what a run is judged by."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from nearcast.cli.app import app
from nearcast.errors import UsageError
from nearcast.experiments.epulsar import game as game_experiment
from nearcast.experiments.epulsar import swarms as swarms_experiment
from nearcast.experiments.epulsar.end_to_end import disturbances, judged, run_policies
from nearcast.experiments.result import write
from nearcast.workloads.located.live import LiveOutcome
from nearcast.workloads.located.play import GoTo, Ignore, Listen, Play
from nearcast.workloads.located.recording import BUCKET_S, Recording
from nearcast.workloads.mmog import Game, mmog_play
from nearcast.workloads.uav import Swarms, uav_play


def test_a_change_lasts_until_the_next_one_of_the_same_topics() -> None:
    play = uav_play(Swarms(swarms=2, drones=2), 1.0)
    changes = (GoTo(1.0, "swarm1", "zone2"), GoTo(2.0, "swarm2", "zone3"), GoTo(5.0, "swarm1", "zone1"))
    acted = Play(**{name: getattr(play, name) for name in play.__struct_fields__} | {"changes": changes})
    spans = [(at_s, until_s, topics[0]) for at_s, until_s, topics in disturbances(acted, 20.0)]
    assert spans == [
        (1.0, 5.0, "swarm1.follow_leader"),
        (2.0, 20.0, "swarm2.follow_leader"),
        (5.0, 20.0, "swarm1.follow_leader"),
    ]


def test_new_listeners_are_changes_and_lost_ones_end_them() -> None:
    play = mmog_play(Game(players=3, groups=2), 1.0)
    changes = (Listen(1.0, "chicago.game", "avatar0"), Ignore(3.0, "chicago.game", "avatar0"))
    acted = Play(**{name: getattr(play, name) for name in play.__struct_fields__} | {"changes": changes})
    assert disturbances(acted, 20.0) == [(1.0, 3.0, ["avatar0"])]


def test_a_change_is_judged_if_it_came_back_or_had_the_time_to() -> None:
    play = uav_play(Swarms(swarms=3, drones=2), 1.0)
    changes = (GoTo(1.0, "swarm1", "zone2"), GoTo(1.0, "swarm2", "zone2"), GoTo(15.0, "swarm3", "zone2"))
    acted = Play(**{name: getattr(play, name) for name in play.__struct_fields__} | {"changes": changes})
    recording = Recording(0.04, 0.0)
    for topic in play.topics:
        late_until_s = {"swarm1": 5.0, "swarm2": 99.0, "swarm3": 99.0}[topic.partition(".")[0]]
        for bucket in range(80):
            at_s = bucket * BUCKET_S
            recording.note(topic, at_s, 0.05 if 1.0 <= at_s < late_until_s else 0.02)
    outcome = LiveOutcome(
        recording=recording, watched=Recording(0.04, 0.0), published=1, refused=0, missed=0, interruptions=0
    )
    figures = judged(acted, "some", 20.0, outcome, 0.5)
    assert (figures.changes, figures.judged, figures.back_within_15s_share) == (3, 2, 0.5)
    assert (figures.back_s_p50, figures.back_s_most) == (4.0, 4.0)


@pytest.mark.live
@pytest.mark.xdist_group("heavy")
def test_a_few_swarms_fly(tmp_path: Path) -> None:
    settings = swarms_experiment.SwarmsSettings(
        swarms=Swarms(swarms=2, drones=3, zones=2, speed_m_per_s=0.1), seconds=3.0, policies=("epulsar",)
    )
    result = asyncio.run(swarms_experiment.run_swarms(settings))
    figures = result.figures
    assert isinstance(figures, swarms_experiment.SwarmsFigures)
    (run,) = figures.policies
    assert (figures.rate_per_s, figures.zone_changes, run.missed, run.interruptions) == (20.0, 0, 0, 0)
    assert 14 <= run.latency_ms_p50 < 80
    assert run.back_within_15s_share is None
    files = write(result, tmp_path)
    assert json.loads(files.json.read_text())["figures"]["policies"][0]["policy"] == "epulsar"
    assert files.png.stat().st_size > 10_000


@pytest.mark.live
@pytest.mark.xdist_group("heavy")
def test_a_small_game_is_played(tmp_path: Path) -> None:
    settings = game_experiment.GameSettings(game=Game(players=8, groups=2), seconds=3.0, policies=("hash_ring",))
    result = asyncio.run(game_experiment.run_game(settings))
    figures = result.figures
    assert isinstance(figures, game_experiment.GameFigures)
    (run,) = figures.policies
    assert (run.missed, run.interruptions, run.refused) == (0, 0, 0)
    assert run.deliveries > run.published / 2
    assert 10 <= run.latency_ms_p50 < 160
    assert write(result, tmp_path).png.stat().st_size > 10_000


def test_a_policy_that_does_not_exist_is_refused_before_anything_starts(tmp_path: Path) -> None:
    begun_s = time.monotonic()
    with pytest.raises(UsageError, match="no policy is called 'nearest'"):
        asyncio.run(run_policies(uav_play(Swarms(), 1.0), ["hash_ring", "nearest"], 60.0))
    result = CliRunner().invoke(app, ["reproduce", "epulsar-9", "--policy", "nearest", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "no policy is called 'nearest'" in result.stderr
    assert time.monotonic() - begun_s < 10


@pytest.mark.parametrize("command", ["epulsar-7", "epulsar-8", "epulsar-9"])
def test_help_shows_an_example(command: str) -> None:
    result = CliRunner().invoke(app, ["reproduce", command, "--help"])
    assert result.exit_code == 0
    assert f"Example: nearcast reproduce {command}" in " ".join(result.stdout.split())


def test_the_command_names_the_distances_and_lifetimes_of_the_workload() -> None:
    from nearcast.cli import reproduce_epulsar as command
    from nearcast.workloads import mmog

    assert [each.value for each in command.Distances] == [each.value for each in mmog.Distances]
    assert [each.value for each in command.Lifetimes] == [each.value for each in mmog.Lifetimes]
