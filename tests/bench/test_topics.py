"""The benchmark of many topics: a small run gives every figure, for both sides and three sizes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from nearcast.bench.topics import TopicsBench, TopicsSize
from nearcast.cli.app import app
from nearcast.cli.bench import _topics_rows


@pytest.mark.live
def test_a_small_run_gives_every_figure() -> None:
    result = CliRunner().invoke(app, ["bench", "topics", "--topics", "400", "--json"])
    assert result.exit_code == 0, result.stderr
    figures = json.loads(result.stdout)
    assert [size["topics"] for size in figures["growth"]] == [100, 200, 400]
    times = [size[side + what] for size in figures["growth"] for side in ("", "redis_py_") for what in TIMES]
    assert all(0 < seconds < 10 for seconds in times)
    assert all(figures[name] == value for name, value in figures["growth"][-1].items())
    assert "400 topics: redis-py on one server" in result.stderr


TIMES = ("subscribe_s", "recover_s")


def test_the_table_shows_the_goals_at_the_size_they_are_for() -> None:
    sizes = [TopicsSize(count, 1.5, 2.5, 3000.0, 0.5, 0.6, 300.0) for count in (50_000, 100_000)]
    rows = _topics_rows(TopicsBench(100_000, 1.5, 2.5, 3000.0, 0.5, 0.6, 300.0, brokers=3, growth=sizes))
    assert rows[0] == ("50,000", "subscribed", "1.50 s", "0.50 s", "")
    assert rows[3] == ("100,000", "subscribed", "1.50 s", "0.50 s", "<= 10 s")
    assert rows[5] == ("", "memory", "3,000 B each", "300 B each", "<= 5,000 B")
