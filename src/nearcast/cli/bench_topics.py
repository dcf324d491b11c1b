"""`nearcast bench topics`: one client with many topics."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.options import Output, OutputOption
from nearcast.cli.output import show
from nearcast.cli.running import run, say

if TYPE_CHECKING:
    from nearcast.bench.topics import TopicsBench

COLUMNS = ("topics", "", "nearcast", "redis-py", "goal")
GOAL_TOPICS = 100_000


def topics(
    count: Annotated[int, typer.Option("--topics", min=4, help="Topics of the client.")] = GOAL_TOPICS,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Time one client that subscribes to many topics and loses its connections, beside redis-py, at three sizes.

    Example: nearcast bench topics --topics 100000 --json
    """
    from nearcast.bench.topics import measure_topics

    found = run(lambda: measure_topics(count, progress=say))
    show(Output.JSON if as_json else output, found, COLUMNS, _rows(found))


def _rows(found: TopicsBench) -> list[tuple[str, str, str, str, str]]:
    rows = []
    for size in found.growth:
        time_goal, memory_goal = ("<= 10 s", "<= 5,000 B") if size.topics == GOAL_TOPICS else ("", "")
        name = f"{size.topics:,}"
        rows += [
            (name, "subscribed", f"{size.subscribe_s:.2f} s", f"{size.redis_py_subscribe_s:.2f} s", time_goal),
            ("", "whole after a cut", f"{size.recover_s:.2f} s", f"{size.redis_py_recover_s:.2f} s", time_goal),
            ("", "memory", _memory(size.bytes_per_topic), _memory(size.redis_py_bytes_per_topic), memory_goal),
        ]
    return rows


def _memory(bytes_per_topic: float) -> str:
    return f"{bytes_per_topic:,.0f} B each"
