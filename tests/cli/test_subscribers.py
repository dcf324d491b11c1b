"""`nearcast subscribers`, and the options of the controller that place and balance subscribers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from nearcast.cli.app import app
from nearcast.cli.settings import balancing_arguments, chosen_coordinating
from nearcast.cli.subscribers import COLUMNS, gateway_row
from nearcast.core.controller.gateways import AssignmentRule
from nearcast.core.wire.views import GatewayView
from nearcast.errors import UsageError


def nearcast(cluster: dict[str, Any], *arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments), env={"NEARCAST_URL": cluster["brokers"]["b1"]})


@pytest.mark.parametrize("command", ["subscribers", "subscribers move", "subscribers shuffle", "controller", "up"])
def test_help_has_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert "Example: nearcast" in result.stdout


def test_a_gateway_is_one_row() -> None:
    view = GatewayView("http://b1:8080", "paris", True, 3, 5, 2, 1500.0, 2500.0, 1)
    expected = ("b1", "paris", "yes", "http://b1:8080", "3", "5", "2", "1.5", "2.5", "4.0", "1")
    assert gateway_row("b1", view) == expected
    assert len(expected) == len(COLUMNS)


def test_options_become_settings_and_are_passed_on() -> None:
    settings = chosen_coordinating("ll", "sdm", ["alpha=0.05"], 3.0)
    assert (settings.placement, settings.balance_s) == (AssignmentRule.LL, 3.0)
    assert settings.balancer is not None
    assert settings.balancer.name == "multistage sdm"
    assert chosen_coordinating("nr", "none", None, 10.0).balancer is None
    given = balancing_arguments("ll", "sdm", ["alpha=0.05"], 3.0)
    assert given == ["--placement", "ll", "--balance", "sdm", "--balance-every", "3.0", "--balance-set", "alpha=0.05"]


@pytest.mark.parametrize(
    ("placement", "balance", "thresholds", "says"),
    [
        ("near", "none", None, "choose one of nr, rr, rnd, ll"),
        ("nr", "gsh", None, "choose one of ldm, sdm"),
        ("nr", "none", ["alpha=0.1"], "add --balance ldm"),
        ("nr", "ldm", ["alpha"], "write it as NAME=VALUE, for example alpha=0.1"),
        ("nr", "ldm", ["alpha=9"], "0 <= alpha <= gamma"),
    ],
)
def test_options_that_cannot_be_say_why(placement: str, balance: str, thresholds: list[str] | None, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        chosen_coordinating(placement, balance, thresholds, 10.0)


@pytest.mark.live
@pytest.mark.xdist_group("cli")
class TestOnACluster:
    """Without gateways: what is asked is answered, what cannot be done is refused."""

    def test_no_gateways_are_shown(self, cluster: dict[str, Any]) -> None:
        result = nearcast(cluster, "subscribers", "--output", "json")
        assert (result.exit_code, result.stderr) == (0, "")
        assert json.loads(result.stdout) == {"gateways": {}, "cov": 0.0, "assignments": {}, "moving": {}}

    @pytest.mark.parametrize(
        ("arguments", "code", "says"),
        [
            (("move", "ada", "--to", "b2"), 1, "no subscriber can be sent to 'b2'"),
            (("shuffle",), 1, "start it with --balance ldm"),
            (("move", "a b", "--to", "b2"), 2, "bad user name"),
            (("move", "ada", "--to", "b 2"), 2, "bad broker name"),
        ],
    )
    def test_what_cannot_be_is_refused(
        self, cluster: dict[str, Any], arguments: tuple[str, ...], code: int, says: str
    ) -> None:
        result = nearcast(cluster, "subscribers", *arguments)
        assert (result.exit_code, result.stdout) == (code, "")
        assert says in result.stderr

    def test_options_before_the_subcommand_are_refused(self, cluster: dict[str, Any]) -> None:
        result = nearcast(cluster, "subscribers", "--output", "json", "shuffle")
        assert result.exit_code == 2
        assert "nearcast subscribers shuffle ... --output" in result.stderr
