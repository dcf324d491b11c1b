"""`nearcast bench`: measurements on this machine."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli import bench_channels, bench_flow, bench_multistage, bench_plan, bench_telemetry, bench_topics
from nearcast.cli.options import Output, OutputOption
from nearcast.cli.output import show
from nearcast.cli.running import run, say

if TYPE_CHECKING:
    from nearcast.bench.client import ClientBench

app = typer.Typer(help="Measurements on this machine.", no_args_is_help=True)

COLUMNS = ("", "measured", "goal")


@app.callback()
def bench() -> None:
    """Measurements on this machine."""


app.command("channels")(bench_channels.channels)
app.command("flow")(bench_flow.flow)
app.command("multistage")(bench_multistage.multistage)
app.command("plan")(bench_plan.plan)
app.command("telemetry")(bench_telemetry.telemetry)
app.command("topics")(bench_topics.topics)


@app.command("client")
def client(
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.01, help="How long each side is measured per round.")
    ] = 0.5,
    messages: Annotated[
        int | None, typer.Option("--messages", min=1, help="End a measurement earlier, after so many messages.")
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often; the medians count.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Measure the client beside redis-py, valkey-glide and a bare loop, on a server of its own. Takes about a minute.

    Example: nearcast bench client --json
    """
    from nearcast.bench.burst import Limit
    from nearcast.bench.client import measure_client

    limit = Limit(seconds, math.inf if messages is None else messages)
    found = run(lambda: measure_client(limit, rounds=rounds, progress=_progress))
    _progress("")
    show(Output.JSON if as_json else output, found, COLUMNS, _rows(found))


def _progress(step: str) -> None:
    """One line that is written over on a terminal; one line per step elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{step}", end="", file=sys.stderr, flush=True)
    elif step:
        say(step)


def _rows(found: ClientBench) -> list[tuple[str, str, str]]:
    glide = "not installed" if found.glide_tasks_per_s is None else _rate(found.glide_tasks_per_s)
    return [
        ("raw RESP loop, the limit", _rate(found.raw_per_s), ""),
        ("redis-py, 64 tasks", _rate(found.redis_py_tasks_per_s), ""),
        ("redis-py, pipeline of 100", _rate(found.redis_py_pipeline_per_s), ""),
        ("valkey-glide, 64 tasks", glide, ""),
        ("nearcast publish, 64 tasks", _rate(found.publish_await_per_s), ""),
        ("  against redis-py, 64 tasks", f"{found.ratio_await_vs_redis_py:.2f} x", ">= 8 x"),
        ("nearcast publish_nowait", _rate(found.publish_nowait_per_s), ""),
        ("  against redis-py, pipeline", f"{found.ratio_nowait_vs_redis_py_pipeline:.2f} x", ">= 4 x"),
        ("  against the raw loop", f"{found.ratio_nowait_vs_raw:.2f} x", ">= 0.3 x"),
        ("redis-py latency, p50", f"{found.redis_py_latency_p50_ms:.3f} ms", ""),
        ("nearcast latency, p50", f"{found.latency_p50_ms:.3f} ms", ""),
        ("  against redis-py", f"{found.latency_p50_ratio_vs_redis_py:.2f} x", "<= 1 x"),
        ("speed with agent against without", f"{found.agent_overhead_ratio:.2f} x", ">= 0.9 x"),
    ]


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f} /s"
