"""Policies by name, and the rules of their thresholds."""

from __future__ import annotations

import subprocess
import sys

import pytest
from cluster_model import Cluster

from nearcast.core.model.planning import AddBroker
from nearcast.errors import UsageError
from nearcast.policies.catalog import POLICY_NAMES, balancer_named, policy_named
from nearcast.policies.dynamoth import DynamothConfig

# Thresholds below a load ratio of 0.4.
LOW = {
    "dynamoth": {"lr_high": "0.3", "lr_safe": "0.2", "lr_low": "0.1"},
    "epulsar": {"resource_high": "0.3", "ranking": "centroids"},
    "hash_ring": {"lr_high": "0.3"},
}


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_a_policy_has_the_name_it_is_found_by(name: str) -> None:
    assert policy_named(name).name == name


def test_thresholds_are_read_from_text() -> None:
    cluster = Cluster.of({"b1": [0.2, 0.2]}, spare=1)
    for name in POLICY_NAMES:
        asked = policy_named(name, LOW[name]).propose(cluster.snapshot, cluster.plan).changes
        assert [type(change) for change in asked] == [AddBroker]
        assert policy_named(name).propose(cluster.snapshot, cluster.plan).changes == ()


@pytest.mark.parametrize(
    ("name", "thresholds", "says"),
    [
        ("dynamo", {}, "choose one of dynamoth, epulsar, hash_ring"),
        ("epulsar", {"ranking": "all_pairs"}, "ranking"),
        ("epulsar", {"resource_high": "85"}, "resource_high <= 1"),
        ("dynamoth", {"lr_hihg": "0.7"}, "choose from lr_high, lr_safe"),
        ("dynamoth", {"lr_high": "much"}, "lr_high"),
        ("dynamoth", {"lr_high": "0.5"}, "lr_low < lr_safe < lr_high"),
        ("hash_ring", {"virtual_nodes": "0"}, "at least 1"),
        ("hash_ring", {"lr_safe": "0.5"}, "choose from virtual_nodes, lr_high"),
    ],
)
def test_what_cannot_be_used_is_said(name: str, thresholds: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        policy_named(name, thresholds)


@pytest.mark.parametrize(
    "change",
    [
        {"lr_safe": 0.9},
        {"lr_low": 0.6},
        {"lr_low": -0.1},
        {"all_subs_threshold": 0.0},
        {"publication_threshold": 0.5},
        {"collapse_share": 1.0},
        {"level_gap": 0.21},
        {"level_gap": 0.0},
        {"brokers_min": 0},
        {"topics_per_step": 0},
    ],
)
def test_thresholds_keep_their_rules(change: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="break the rule"):
        DynamothConfig(**change)


def test_the_names_are_known_without_numpy() -> None:
    code = "import sys, nearcast.policies.catalog; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_a_missing_library_is_said_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("nearcast.policies.dynamoth", "numpy"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy", None)
    monkeypatch.setitem(sys.modules, "nearcast.policies.loads", None)
    with pytest.raises(UsageError, match=r"pip install 'nearcast\[policies\]'"):
        policy_named("dynamoth")


def test_a_balancer_has_the_name_of_its_scheme() -> None:
    assert balancer_named("sdm", {"alpha": "0.05"}).name == "multistage sdm"


@pytest.mark.parametrize(
    ("scheme", "thresholds", "says"),
    [
        ("gsh", {}, "choose one of ldm, sdm"),
        ("ldm", {"alhpa": "0.1"}, "choose from scheme, alpha"),
        ("ldm", {"alpha": "2"}, "0 <= alpha <= gamma"),
    ],
)
def test_a_balancer_that_cannot_be_says_why(scheme: str, thresholds: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        balancer_named(scheme, thresholds)
