"""Settings of the flow simulator: their rules, and what follows from them."""

from __future__ import annotations

import pytest

from nearcast.core.controller.planning_input import WINDOW_S
from nearcast.errors import UsageError
from nearcast.flow.model import FlowSettings


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"step_s": 0.0}, "step_s is 0: it must be above 0"),
        ({"capacity_bytes_per_s": -1.0}, "capacity_bytes_per_s is -1: it must be above 0"),
        ({"move_s": -0.5}, "move_s is -0.5: it must not be negative"),
        ({"cpu_s_per_delivery": float("nan")}, "cpu_s_per_delivery is nan"),
        ({"fail_ratio": 0.9}, "use 1 or more"),
        ({"step_s": 2.0, "window_s": 1.0}, "shorter than one step"),
        ({"brokers_max": 0}, "must be 1 or more"),
        ({"virtual_nodes": 0}, "must be 1 or more"),
    ],
)
def test_a_wrong_setting_says_what_to_do(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        FlowSettings(**wrong)


def test_a_server_sends_a_little_more_than_its_capacity() -> None:
    settings = FlowSettings(capacity_bytes_per_s=1e6)
    assert settings.limit_bytes_per_s == pytest.approx(1.15e6)


def test_snapshots_look_back_as_far_as_the_controller_does() -> None:
    assert FlowSettings().window_steps == WINDOW_S
    assert FlowSettings(step_s=0.5).window_steps == 2 * WINDOW_S
