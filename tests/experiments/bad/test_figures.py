"""The experiments on gateways, at sizes that run in a second or so each."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nearcast.errors import UsageError
from nearcast.experiments.bad.distribution import run_distribution
from nearcast.experiments.bad.prototype import COMPARISONS, LOADS, MIGRATIONS, run_prototype
from nearcast.experiments.bad.runs import Balancing, Placement, Prototype, Simulation, Way, make_runs
from nearcast.experiments.bad.sensitivity import run_sensitivity
from nearcast.experiments.result import silent, write
from nearcast.workloads.emergency.flow import ScaleSettings
from nearcast.workloads.emergency.scenario import EmergencySettings

SMALL = Prototype(emergency=EmergencySettings(users=80, reports=2000, speed=3), beta_bytes_per_s=500.0)
TINY = Simulation(
    scale=ScaleSettings(subscribers=1500, per_channel=30, subscribe_s=120, seconds=240), beta_bytes_per_s=20e6
)


@pytest.mark.parametrize("name", [*LOADS, *COMPARISONS, MIGRATIONS])
def test_the_figures_of_the_prototype(name: str, tmp_path: Path) -> None:
    result = run_prototype(name, SMALL, (0,), workers=1)
    ways = result.figures.ways
    assert set(result.series) - {"seed"} <= set(ways)
    for label, measures in ways.items():
        if "no balancing" in label:
            assert measures.migrations == 0
        elif label.startswith("NR"):
            assert measures.migrations > 5
            assert measures.cov < 0.3
        if label.startswith("NR"):
            assert measures.shuffles == ("GSH" in label), label
    assert 400 < result.figures.frontend < 520
    files = write(result, tmp_path)
    assert json.loads(files.json.read_text())["experiment"] == name
    assert files.png.stat().st_size > 20_000


def test_nearest_placement_is_the_worst_and_both_schemes_mend_it() -> None:
    ways = [Way(placement, balancing) for placement in Placement for balancing in (Balancing.NONE, Balancing.LDM)]
    runs = make_runs(SMALL, ways, (1, 2), silent, workers=1)
    cov = {str(way): max(float(series.cov[160:].mean()) for series in runs.done[way]) for way in ways}
    moves = {str(way): min(int(series.moves[-1]) for series in runs.done[way]) for way in ways}
    assert cov["NR + no balancing"] > 3 * max(cov["RND + no balancing"], cov["RR + no balancing"])
    assert cov["NR + LDM"] < cov["NR + no balancing"] / 3
    assert moves["NR + LDM"] > max(moves["RND + LDM"], moves["RR + LDM"])


def test_figure_13_reaches_its_goals(tmp_path: Path) -> None:
    result = run_distribution(TINY, (0, 1), workers=1)
    figures = result.figures
    assert figures.ldm_015_reached
    assert figures.ldm_005_reached
    assert figures.gsh_below_005
    assert figures.nr_cov > 0.5
    assert figures.gsh_cov < figures.ldm_005_cov < figures.ldm_015_cov < figures.nr_cov
    assert figures.goals["gsh"].moves_of_first_plan > figures.goals["ldm_005"].moves_of_first_plan
    assert figures.goals["ldm_015"].goal == 0.15
    assert figures.nr_clients_most > 3 * figures.nr_clients_fewest
    assert sum(figures.clients["nr"]) == sum(figures.clients["gsh"]) == 1500
    assert figures.sdm_incoming_saved_share_local > 0
    assert figures.sdm_incoming_added_share_local < figures.ldm_incoming_added_share_local
    assert write(result, tmp_path).png.stat().st_size > 20_000


def test_a_goal_that_is_never_reached_is_said() -> None:
    never = Simulation(scale=TINY.scale, beta_bytes_per_s=1e12)
    result = run_distribution(never, (0,), workers=1)
    assert not result.figures.gsh_below_005
    assert result.figures.goals["ldm_015"].reached_after_s is None
    assert ("gsh: at or below 0.05", "never, then 0.0% of the time") in result.rows


def test_a_smaller_alpha_costs_more_moves(tmp_path: Path) -> None:
    result = run_sensitivity(TINY, (0,), workers=1)
    figures = result.figures
    assert figures.migrations_alpha_005 == figures.migrations_alpha_015 == 0  # so little load is below beta
    raised = Simulation(
        scale=ScaleSettings(subscribers=1500, rate_mean=200e3, per_channel=30, subscribe_s=120, seconds=240)
    )
    figures = run_sensitivity(raised, (0,), workers=1).figures
    assert figures.migrations_alpha_005 > figures.migrations_alpha_015 > 50
    assert figures.cov_alpha_005 < figures.cov_alpha_015 < 0.3
    assert write(result, tmp_path).png.stat().st_size > 10_000


def test_one_seed_gives_one_result() -> None:
    one, again = (run_prototype("bad-11", SMALL, (3,), workers=1) for _ in range(2))
    assert one.figures == again.figures
    assert one.series == again.series


def test_a_run_needs_a_seed_and_brokers() -> None:
    with pytest.raises(UsageError, match="seed"):
        make_runs(SMALL, (), (), silent)
    with pytest.raises(UsageError, match="2 or more"):
        Prototype(brokers=1)
