"""The client benchmark: a tiny run gives every figure, and no message goes uncounted."""

from __future__ import annotations

import asyncio
import json
from math import isfinite

import pytest
from typer.testing import CliRunner

from nearcast.bench import peers
from nearcast.bench.client import ClientBench
from nearcast.bench.peers import Limit, by_tasks, rate_of
from nearcast.cli.app import app
from nearcast.cli.bench import _client_rows
from nearcast.errors import Unavailable

KEYS = {
    "publish_await_per_s",
    "publish_nowait_per_s",
    "redis_py_tasks_per_s",
    "redis_py_pipeline_per_s",
    "glide_tasks_per_s",
    "raw_per_s",
    "ratio_await_vs_redis_py",
    "ratio_nowait_vs_redis_py_pipeline",
    "ratio_nowait_vs_raw",
    "latency_p50_ratio_vs_redis_py",
    "latency_p50_ms",
    "redis_py_latency_p50_ms",
    "agent_overhead_ratio",
}


@pytest.mark.live
def test_a_tiny_run_gives_every_figure() -> None:
    result = CliRunner().invoke(
        app, ["bench", "client", "--json", "--seconds", "0.1", "--messages", "500", "--rounds", "1"]
    )
    assert result.exit_code == 0, result.stderr
    figures = json.loads(result.stdout)
    assert set(figures) == KEYS
    assert all(isinstance(value, float) and isfinite(value) and value > 0 for value in figures.values())
    assert figures["ratio_nowait_vs_raw"] == pytest.approx(figures["publish_nowait_per_s"] / figures["raw_per_s"])
    assert "round 1 of 1: publish_nowait" in result.stderr


class LoopbackPeer:
    """Receives what it publishes, except every n-th message."""

    def __init__(self, lose_every: int = 0) -> None:
        self.received = 0
        self._published = 0
        self._lose_every = lose_every

    async def publish(self) -> object:
        self._published += 1
        if not self._lose_every or self._published % self._lose_every:
            self.received += 1
        await asyncio.sleep(0)  # as if it were sent
        return None


def test_a_burst_ends_at_its_limit_of_messages() -> None:
    async def scenario() -> int:
        peer = LoopbackPeer()
        assert await rate_of(peer, by_tasks(peer), Limit(5.0, messages=1000)) > 0
        return peer.received

    assert asyncio.run(scenario()) == 1000


def test_a_lost_message_spoils_the_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "LOST_S", 0.05)
    peer = LoopbackPeer(lose_every=100)
    with pytest.raises(Unavailable, match="10 of 1000 messages did not arrive"):
        asyncio.run(rate_of(peer, by_tasks(peer), Limit(5.0, messages=1000)))


def test_the_table_shows_the_goals_and_a_library_that_is_not_there() -> None:
    figures = dict.fromkeys(KEYS, 1.0) | {"glide_tasks_per_s": None, "publish_await_per_s": 123456.7}
    rows = {row[0].strip(): row[1:] for row in _client_rows(ClientBench(**figures))}
    assert rows["valkey-glide, 64 tasks"] == ("not installed", "")
    assert rows["nearcast publish, 64 tasks"] == ("123,457 /s", "")
    assert rows["relative to redis-py, 64 tasks"] == ("1.00 x", ">= 8 x")
