"""`nearcast bench`: measurements on this machine, one command each."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.bench_coordinates import coordinates
from nearcast.cli.bench_data import channels, ingest, rate, ratio, telemetry
from nearcast.cli.shared import Output, OutputOption, errors_as_exit_codes, run, say, show

if TYPE_CHECKING:
    from nearcast.bench.client import ClientBench
    from nearcast.bench.flow import FlowBench
    from nearcast.bench.log import LogBench
    from nearcast.bench.multistage import MultistageBench, Timed
    from nearcast.bench.plan import PlanBench
    from nearcast.bench.topics import TopicsBench


# --- bench flow


FLOW_COLUMNS = ("clients", "topics", "simulated s", "policy calls", "seconds", "ms per simulated s")


@errors_as_exit_codes()
def flow(
    clients: Annotated[int, typer.Option("--clients", min=10, help="Players in the game.")] = 10_000,
    seconds: Annotated[int, typer.Option("--seconds", min=2, help="Simulated seconds.")] = 600,
    largest: Annotated[
        int, typer.Option("--largest", help="Also do short runs with 10, 100, ... times the clients, up to this many.")
    ] = 1_000_000,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Time the flow simulator at growing numbers of clients.

    It runs the Dynamoth policy, and takes about a minute.

    Example: nearcast bench flow --json
    """
    from nearcast.bench.flow import measure_flow

    found = measure_flow(clients, seconds, largest, say)
    show(Output.JSON if as_json else output, found, FLOW_COLUMNS, _flow_rows(found), _title(found))


def _flow_rows(found: FlowBench) -> list[tuple[str, ...]]:
    return [
        (
            f"{size.clients:,}",
            f"{size.topics:,}",
            f"{size.steps:,}",
            f"{size.policy_calls:,}",
            f"{size.seconds:.2f}",
            f"{size.seconds_per_step * 1e3:.1f}",
        )
        for size in found.scaling
    ]


def _title(found: FlowBench) -> str:
    return f"{found.rebalancings} rebalancings; time per simulated second ~ clients^{found.exponent:.2f}"


# --- bench multistage


MULTISTAGE_COLUMNS = ("", "time", "moves", "cov before, after", "incoming load saved", "goal")
MULTISTAGE_GOALS = {
    (1_000_000, 10_000, 100): "<= 10 s"
}  # by subscribers, backend subscriptions and brokers; GSH and LDM

MultistageRow = tuple[str, str, str, str, str, str]


@errors_as_exit_codes()
def multistage(
    subscribers: Annotated[int, typer.Option("--subscribers", min=1000, help="Subscribers, all online.")] = 1_000_000,
    backend: Annotated[int, typer.Option("--backend", min=30, help="Backend subscriptions.")] = 10_000,
    brokers: Annotated[int, typer.Option("--brokers", min=2, help="Brokers that serve them.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Time the balancing of subscribers over gateways.

    A shuffle (GSH) and single moves (LDM, SDM) follow nearest placement. They are compared with the paper's Algorithm 1
    in plain Python.

    Example: nearcast bench multistage --subscribers 1000000 --backend 10000 --brokers 100 --json
    """
    from nearcast.bench.multistage import measure_multistage

    found = measure_multistage(subscribers, backend, brokers, progress=say)
    show(Output.JSON if as_json else output, found, MULTISTAGE_COLUMNS, _multistage_rows(found))


def _multistage_rows(found: MultistageBench) -> list[MultistageRow]:
    rows: list[MultistageRow] = []
    for size in found.growth:
        goal = MULTISTAGE_GOALS.get((size.subscribers, found.backend, found.brokers), "")
        rows.append((f"{size.subscribers:,} subscribers, {size.frontend:,} subscriptions", "", "", "", "", ""))
        rows.append(_multistage_row("  GSH", size.gsh, goal))
        rows.append(_multistage_row("  LDM", size.ldm, goal))
        rows.append(_multistage_row("  SDM", size.sdm, ""))
    reference = found.reference
    moves = f"{reference.moves:,}"
    rows.append((f"{reference.subscribers:,} subscribers, Algorithm 1 as printed", "", "", "", "", ""))
    rows.append(("  plain Python", f"{reference.seconds_reference:.3f} s", moves, "", "", ""))
    rows.append(("  LDM", f"{reference.seconds:.3f} s, {reference.ratio:.0f} x", moves, "", "", ""))
    return rows


def _multistage_row(name: str, timed: Timed, goal: str) -> MultistageRow:
    covs = f"{timed.cov_before:.3f}, {timed.cov_after:.3f}"
    return name, f"{timed.seconds:.2f} s", f"{timed.moves:,}", covs, f"{timed.incoming_saved_share:.1%}", goal


# --- bench plan


PLAN_COLUMNS = ("", "measured", "goal")
PLAN_GOALS = {  # by policy, topics and brokers
    ("dynamoth", 100_000, 100): "<= 1,000 ms",
    ("epulsar", 100_000, 1000): "<= 2,000 ms",
}


@errors_as_exit_codes()
def plan(
    policy: Annotated[
        str, typer.Option("--policy", metavar="NAME", help="dynamoth, epulsar or hash_ring.")
    ] = "dynamoth",
    topics: Annotated[int, typer.Option("--topics", min=1000, help="Topics in the cluster, all loaded.")] = 100_000,
    brokers: Annotated[int, typer.Option("--brokers", min=2, help="Brokers in the cluster.")] = 100,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How many rounds; medians are shown.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Time a policy that plans for a whole cluster.

    It is compared with the paper's pseudocode in plain Python, for a smaller cluster.

    Example: nearcast bench plan --policy dynamoth --topics 100000 --brokers 100 --json
    """
    from nearcast.bench.plan import measure_plan

    found = measure_plan(policy, topics, brokers, runs=rounds, progress=say)
    show(Output.JSON if as_json else output, found, PLAN_COLUMNS, _plan_rows(found))


def _plan_rows(found: PlanBench) -> list[tuple[str, str, str]]:
    name, requested = found.policy, found.growth[-1]
    rows = [
        (
            f"{name}{size.ranking and ' ' + size.ranking}, {_size(size.topics, size.brokers)}",
            _ms(size.seconds),
            PLAN_GOALS.get((name, size.topics, size.brokers), ""),
        )
        for size in found.growth
    ]
    before, after = requested.highest_load_ratio_before, requested.highest_load_ratio_after
    rows.append(("  changes proposed", f"{requested.changes:,}", ""))
    rows.append(("  highest load ratio, before and after", f"{before:.2f}, {after:.2f}", ""))
    if requested.memory_peak_bytes is not None:
        rows.append(("  memory of one plan", f"{requested.memory_peak_bytes / 1e6:,.0f} MB", ""))
    reference = found.reference
    if reference is not None:
        size = _size(reference.topics, reference.brokers)
        rows.append((f"the paper's pseudocode, {size}", _ms(reference.seconds_reference), ""))
        rows.append((f"{name}, {size}", _ms(reference.seconds), ""))
        rows.append(("  pseudocode, relative to it", f"{reference.ratio:.1f} x", ""))
    return rows


def _size(topics: int, brokers: int) -> str:
    return f"{topics:,} topics, {brokers} brokers"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"


# --- bench topics


TOPICS_COLUMNS = ("topics", "", "nearcast", "redis-py", "goal")
GOAL_TOPICS = 100_000


def topics(
    count: Annotated[int, typer.Option("--topics", min=4, help="Topics that the client uses.")] = GOAL_TOPICS,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Time a client with many topics, compared with redis-py.

    It subscribes to them, and then loses its connections, at three sizes.

    Example: nearcast bench topics --topics 100000 --json
    """
    from nearcast.bench.topics import measure_topics

    found = run(lambda: measure_topics(count, progress=say))
    show(Output.JSON if as_json else output, found, TOPICS_COLUMNS, _topics_rows(found))


def _topics_rows(found: TopicsBench) -> list[tuple[str, str, str, str, str]]:
    rows = []
    for size in found.growth:
        time_goal, memory_goal = ("<= 10 s", "<= 5,000 B") if size.topics == GOAL_TOPICS else ("", "")
        name = f"{size.topics:,}"
        rows += [
            (name, "subscribed", f"{size.subscribe_s:.2f} s", f"{size.redis_py_subscribe_s:.2f} s", time_goal),
            ("", "restored after a cut", f"{size.recover_s:.2f} s", f"{size.redis_py_recover_s:.2f} s", time_goal),
            ("", "memory", _memory(size.bytes_per_topic), _memory(size.redis_py_bytes_per_topic), memory_goal),
        ]
    return rows


def _memory(bytes_per_topic: float) -> str:
    return f"{bytes_per_topic:,.0f} B each"


app = typer.Typer(help="Run benchmarks on this machine.", no_args_is_help=True)

CLIENT_COLUMNS = ("", "measured", "goal")


@app.callback()
def bench() -> None:
    """Run benchmarks on this machine."""


# --- bench, bench client


app.command("channels")(channels)
app.command("coordinates")(coordinates)
app.command("flow")(flow)
app.command("ingest")(ingest)
app.command("multistage")(multistage)
app.command("plan")(plan)
app.command("telemetry")(telemetry)
app.command("topics")(topics)


Seconds = Annotated[float, typer.Option("--seconds", min=0.01, help="How long each side is measured per round.")]
Messages = Annotated[
    int | None, typer.Option("--messages", min=1, help="End each measurement early, after this many messages.")
]
Rounds = Annotated[int, typer.Option("--rounds", min=1, help="How many rounds; medians are shown.")]
Json = Annotated[bool, typer.Option("--json", help="The same as --output json.")]


@app.command("client")
def client(
    seconds: Seconds = 0.5,
    messages: Messages = None,
    rounds: Rounds = 10,
    as_json: Json = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Time the client, compared with other libraries.

    They are redis-py, valkey-glide and a bare loop, on a server started for this. It takes about a minute.

    Example: nearcast bench client --json
    """
    from nearcast.bench.client import measure_client
    from nearcast.bench.peers import Limit

    limit = Limit(seconds, math.inf if messages is None else messages)
    found = run(lambda: measure_client(limit, rounds=rounds, progress=_progress))
    _progress("")
    show(Output.JSON if as_json else output, found, CLIENT_COLUMNS, _client_rows(found))


@app.command("log")
def log(
    seconds: Seconds = 0.5,
    messages: Messages = None,
    rounds: Rounds = 7,
    as_json: Json = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Time publishing to kept topics, and reading them.

    It is compared with topics that are not, and with redis-py's transactions and XREAD. It takes about a minute.

    Example: nearcast bench log --json
    """
    from nearcast.bench.log import measure_log
    from nearcast.bench.peers import Limit

    limit = Limit(seconds, math.inf if messages is None else messages)
    found = run(lambda: measure_log(limit, rounds=rounds, progress=_progress))
    _progress("")
    show(Output.JSON if as_json else output, found, CLIENT_COLUMNS, _log_rows(found))


def _log_rows(found: LogBench) -> list[tuple[str, str, str]]:
    return [
        ("publish_nowait, one topic", rate(found.publish_per_s), ""),
        ("  kept", rate(found.log_publish_per_s), ""),
        ("  relative", ratio(found.ratio), ">= 0.7 x"),
        ("  the server's time per message, relative", ratio(found.server_ratio), ""),
        ("publish_nowait, 50 topics", rate(found.publish_50_topics_per_s), ""),
        ("  kept", rate(found.log_publish_50_topics_per_s), ""),
        ("  relative", ratio(found.ratio_50_topics), ">= 0.5 x"),
        ("redis-py, MULTI XADD PUBLISH EXEC of 100", rate(found.redis_py_transaction_per_s), ""),
        ("  kept, relative to redis-py", ratio(found.ratio_vs_redis_py), ">= 4 x"),
        ("reading a log", rate(found.read_per_s), ""),
        ("  redis-py, XREAD of 1,000", rate(found.redis_py_read_per_s), ""),
        ("  relative to redis-py", ratio(found.ratio_read), ""),
        ("publish_nowait, with a replica", rate(found.publish_with_replica_per_s), ""),
        ("  kept", rate(found.log_publish_with_replica_per_s), ""),
        ("  kept, quorum of 2", rate(found.quorum_per_s), ""),
        ("  relative to kept", ratio(found.ratio_quorum), ">= 0.5 x"),
        ("longest pause of a move, median", f"{found.move_pause_p50_ms:.1f} ms", ""),
        ("  99th percentile", f"{found.move_pause_p99_ms:.1f} ms", "<= 50 ms"),
    ]


def _progress(step: str) -> None:
    """One line that is overwritten on a terminal; one line per step elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{step}", end="", file=sys.stderr, flush=True)
    elif step:
        say(step)


def _client_rows(found: ClientBench) -> list[tuple[str, str, str]]:
    glide = "not installed" if found.glide_tasks_per_s is None else rate(found.glide_tasks_per_s)
    return [
        ("raw RESP loop, the limit", rate(found.raw_per_s), ""),
        ("redis-py, 64 tasks", rate(found.redis_py_tasks_per_s), ""),
        ("redis-py, pipeline of 100", rate(found.redis_py_pipeline_per_s), ""),
        ("valkey-glide, 64 tasks", glide, ""),
        ("nearcast publish, 64 tasks", rate(found.publish_await_per_s), ""),
        ("  relative to redis-py, 64 tasks", f"{found.ratio_await_vs_redis_py:.2f} x", ">= 8 x"),
        ("nearcast publish_nowait", rate(found.publish_nowait_per_s), ""),
        ("  relative to redis-py, pipeline", f"{found.ratio_nowait_vs_redis_py_pipeline:.2f} x", ">= 4 x"),
        ("  relative to the raw loop", f"{found.ratio_nowait_vs_raw:.2f} x", ">= 0.3 x"),
        ("redis-py latency, p50", f"{found.redis_py_latency_p50_ms:.3f} ms", ""),
        ("nearcast latency, p50", f"{found.latency_p50_ms:.3f} ms", ""),
        ("  relative to redis-py", f"{found.latency_p50_ratio_vs_redis_py:.2f} x", "<= 1 x"),
        ("speed with agent, relative to without", f"{found.agent_overhead_ratio:.2f} x", ">= 0.9 x"),
    ]
