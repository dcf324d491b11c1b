"""Timers and limits: the defaults keep the rules, and a broken rule is named."""

from __future__ import annotations

from typing import Any

import pytest

from nearcast.core.model.settings import DEFAULT_LIMITS, DEFAULT_TIMING, Limits, Timing
from nearcast.errors import UsageError


def test_the_defaults_are_those_of_the_protocol() -> None:
    timing = DEFAULT_TIMING
    told = (timing.heartbeat_s, timing.lease_s, timing.dead_s, timing.ready_s, timing.linger_s, timing.gap_s)
    assert told == (0.5, 2.5, 3.0, 5.0, 0.5, 1.0)
    assert DEFAULT_LIMITS.window == 4096


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"heartbeat_s": 0.7}, "4 * heartbeat_s <= lease_s"),
        ({"lease_s": 2.8}, "1.1 * lease_s < dead_s"),
        ({"dead_s": 2.7}, "1.1 * lease_s < dead_s"),
        ({"block_s": 5.0}, "block_s < ready_s"),
        ({"resync_s": 1.0}, "resync_s < gap_s"),
        ({"leader_s": 2.5}, "leader_s < lease_s"),
    ],
)
def test_a_timer_that_breaks_a_rule_is_refused_with_the_rule(change: dict[str, Any], rule: str) -> None:
    with pytest.raises(UsageError) as raised:
        Timing(**change)
    assert str(raised.value) == f"timers break the rule {rule}"


@pytest.mark.parametrize(
    "change", [{"heartbeat_s": 5 / 8}, {"lease_s": 2.7}, {"dead_s": 2.76}, {"block_s": 4.9}, {"leader_s": 2.4}]
)
def test_timers_up_to_the_edge_are_taken(change: dict[str, Any]) -> None:
    Timing(**change)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"window": 0}, "window >= 1"),
        ({"mailbox": 0}, "mailbox >= 1"),
        ({"window_bytes": 4 << 20}, "ring_bytes < window_bytes"),
    ],
)
def test_limits_that_would_stop_everything_are_refused(change: dict[str, Any], rule: str) -> None:
    with pytest.raises(UsageError) as raised:
        Limits(**change)
    assert str(raised.value) == f"limits break the rule {rule}"
