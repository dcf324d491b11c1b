"""The evening of the demo: capacity, thresholds and rates fit each other."""

from __future__ import annotations

from nearcast.demo.policy import (
    BROKERS_MAX,
    CAPACITY_BYTES_PER_S,
    EVENING,
    LR_HIGH,
    LR_SAFE,
    POLICY,
    SCORES,
    THRESHOLDS,
    VOTES,
    Goal,
    PolicyPlan,
    Scene,
)
from nearcast.policies.catalog import policy_named
from nearcast.policies.dynamoth import DynamothConfig

DELIVERY_BYTES = 400.0  # measured: payload, header, framing, and the publisher's reply
LR_LOW = DynamothConfig().lr_low


def deliveries_per_s(scene: Scene) -> float:
    shapes = PolicyPlan().shapes()
    scores = shapes[SCORES]
    chats_and_votes = scene.chats_per_s * shapes["chats"].subscribers + scene.votes_per_s * shapes[VOTES].subscribers
    return chats_and_votes + scores.rate_per_s * (scores.subscribers + scene.guests)


def brokers_filled(scene: Scene) -> float:
    """How many brokers' capacity the scene takes."""
    return deliveries_per_s(scene) * DELIVERY_BYTES / CAPACITY_BYTES_PER_S


def test_the_policy_takes_the_thresholds() -> None:
    assert policy_named(POLICY, dict(text.split("=") for text in THRESHOLDS)).name == POLICY
    assert LR_LOW < LR_SAFE < LR_HIGH


def test_a_quiet_evening_needs_one_broker_and_a_busy_one_more() -> None:
    quiet, chats, votes, crowd, home = map(brokers_filled, EVENING)
    assert max(quiet, home) < LR_LOW
    assert chats > 1.2 * LR_HIGH  # enough for a machine that is slower than planned
    assert chats < votes < crowd < 0.9 * LR_SAFE * BROKERS_MAX


def test_the_load_is_light_enough_for_two_cores() -> None:
    assert max(map(deliveries_per_s, EVENING)) < 2500


def test_the_evening_shows_everything_the_policy_can_do() -> None:
    assert [goal for scene in EVENING for goal in scene.goals] == list(Goal)
