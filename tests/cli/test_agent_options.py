"""`nearcast agent --gateway`: wrong options are said before anything starts."""

from __future__ import annotations

import socket

import pytest
from typer.testing import CliRunner

from nearcast.cli.app import app
from nearcast.errors import UsageError
from nearcast.gateway.server import listen

AGENT = ["agent", "--broker", "b", "--server", "redis://h", "--store", "redis://s"]
HERE = ["--gateway", "127.0.0.1:0"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--gateway", "8080"], "bad gateway address '8080': use HOST:PORT"),
        (["--gateway", "127.0.0.1:99999"], "gateway address '127.0.0.1:99999'"),
        ([*HERE, "--gateway-url", "paris.example.com"], "bad --gateway-url"),
        ([*HERE, "--origin", "paris.example.com"], "bad origin"),
        ([*HERE, "--trust-proxy", "proxy.example.com"], "bad proxy"),
        ([*HERE, "--allow", "news"], "bad right 'news'"),
        ([*HERE, "--register", "secret"], "set NEARCAST_REGISTER_SECRET"),
        ([*HERE, "--register", "friends"], "bad registration rule 'friends'"),
        (["--gateway", "0.0.0.0:0"], "say who may register"),
        ([*HERE, "--gateway-url", "https://paris.example.com"], "say who may register"),
        ([*HERE, "--position", "paris"], "bad --position"),
        ([*HERE, "--position", "100,0"], "latitude goes from"),
    ],
)
def test_a_wrong_option_is_a_usage_error(options: list[str], problem: str) -> None:
    result = CliRunner().invoke(app, [*AGENT, *options])
    assert result.exit_code == 2
    assert problem in result.stderr


def test_an_address_that_is_taken_is_a_usage_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        result = CliRunner().invoke(app, [*AGENT, "--gateway", f"127.0.0.1:{taken.getsockname()[1]}"])
    assert result.exit_code == 2
    assert "in use" in result.stderr


def test_an_address_is_taken_as_soon_as_a_gateway_has_opened_it() -> None:
    waiting, url = listen("127.0.0.1:0")  # it does not serve yet: it may have to wait for the store
    with waiting, pytest.raises(UsageError, match="in use"):
        listen(url.removeprefix("http://"))
