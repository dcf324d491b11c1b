"""`nearcast brokers profile`: how many messages per second a broker may deliver before its latency suffers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from nearcast.cli.conclusion import shown_progress
from nearcast.cli.quiet import chosen, quiet
from nearcast.cli.shared import (
    ASK_S,
    DEFAULT_URL,
    Output,
    OutputOption,
    Url,
    errors_as_exit_codes,
    print_json,
    print_table,
    run,
    say,
)
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.experiments.chart import Chart, Colour, Line, Marks, Sign
    from nearcast.runtime.profiling.configuration import Configuration
    from nearcast.runtime.profiling.profile import Profile, ProfileSettings
    from nearcast.runtime.profiling.runs import Run
    from nearcast.runtime.profiling.threshold import Threshold

RUN_COLUMNS = (
    *("workload", "topics", "publishers", "subscribers", "bytes", "in/s per topic", "out/s", "out MB/s"),
    *("p50 ms", "p95 ms", "p99 ms", "CPU %", "measuring CPU %", "remark"),
)


Runs = Annotated[int, typer.Option("--runs", min=0, max=1000, help="Of the sweep. 0: only the workloads.")]
Seconds = Annotated[float, typer.Option("--seconds", min=0.5, max=60, help="Of each run.")]
Topics = Annotated[str, typer.Option("--topics", metavar="N,...", help="To choose from.")]
Publishers = Annotated[str, typer.Option("--publishers", metavar="N,...", help="On each topic.")]
Subscribers = Annotated[str, typer.Option("--subscribers", metavar="N,...", help="Of each topic.")]
Payloads = Annotated[str, typer.Option("--payload-bytes", metavar="N,...", help="Of messages, without header.")]
Highest = Annotated[
    float | None,
    typer.Option("--highest", metavar="RATE", help="Of the sweep, delivered. Default: more than it delivers."),
]
Workloads = Annotated[
    list[Path] | None,
    typer.Option("--workload", metavar="FILE", help="Of the OpenMessaging benchmark; may be repeated."),
]
Scale = Annotated[float, typer.Option("--scale", min=1, help="Divide the workloads' rates and counts.")]
Factor = Annotated[float, typer.Option("--factor", help="Slow is a p95 above so many times the unloaded one.")]
LimitMs = Annotated[float | None, typer.Option("--limit-ms", help="Slow is a p95 above this, instead.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of the sweep.")]
Plot = Annotated[Path | None, typer.Option("--plot", metavar="FILE.png", help="Draw p95 over the rate.")]
Apply = Annotated[bool, typer.Option("--apply/--dry-run", help="Set the broker's threshold.")]
AtLeast = Annotated[bool, typer.Option("--at-least", help="Also apply what is only a lower bound.")]
Force = Annotated[bool, typer.Option("--force", help="Also profile a broker that carries load.")]


def profile(
    broker: Annotated[str, typer.Argument(metavar="BROKER")],
    runs: Runs = 24,
    seconds: Seconds = 2.0,
    topics: Topics = "1,4,16",
    publishers: Publishers = "1,2,4",
    subscribers: Subscribers = "1,2,4,8",
    payload_bytes: Payloads = "20,200,1000",
    highest: Highest = None,
    workload: Workloads = None,
    scale: Scale = 1.0,
    factor: Factor = 3.0,
    limit_ms: LimitMs = None,
    seed: Seed = 0,
    plot: Plot = None,
    apply: Apply = False,
    at_least: AtLeast = False,
    force: Force = False,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Find how many messages per second a broker may deliver.

    More of them would make its latency suffer. Topics, publishers, subscribers, message size and rate are varied, run
    after run, on private channels. Printed are what each run achieved, how strongly each parameter goes with the 95th
    percentile of latency (Spearman's rank correlation), and the threshold R_out^th: the highest rate of delivered
    messages that is not slow. The policy epulsar takes topics from brokers above it.

    Run this where the clients are, or beside the server, at a quiet time. A policy sees the load, and may move topics
    away meanwhile.

    Example: nearcast brokers profile b1 --apply

    Example: nearcast brokers profile b1 --workload simple-workload.yaml --scale 10 --plot b1.png
    """
    from nearcast.runtime.profiling.profile import ProfileSettings
    from nearcast.runtime.profiling.sweep import Space

    with errors_as_exit_codes():
        space = Space(
            topics=_numbers("--topics", topics),
            publishers=_numbers("--publishers", publishers),
            subscribers=_numbers("--subscribers", subscribers),
            payload_bytes=_numbers("--payload-bytes", payload_bytes),
        )
        settings = ProfileSettings(
            seconds=seconds,
            runs=runs,
            seed=seed,
            space=space,
            highest_per_s=highest,
            factor=factor,
            limit_s=None if limit_ms is None else limit_ms / 1e3,
        )
        given = _workloads(workload or [], scale, seconds)
        if not runs and not given:
            raise UsageError("nothing to measure: use --runs with at least 1, or --workload")
        if plot is not None:
            _check_plot(plot)
    found, applied = run(
        lambda: _profile(url, broker, settings, given, at_least=at_least if apply else None, force=force)
    )
    if plot is not None:
        _draw(broker, found, plot)
    if output is Output.JSON:
        print_json({"broker": broker, "applied": applied, "scale": scale, **_data(found)})
    else:
        _print(found)
    _conclude(broker, found.threshold, wanted=apply, applied=applied)


def _numbers(option: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        raise UsageError(f"{option} {text!r}: write whole numbers with commas between them, such as 1,4,16")
    return tuple(int(part) for part in parts)


def _workloads(files: list[Path], scale: float, seconds: float) -> list[Configuration]:
    from nearcast.runtime.profiling.openmessaging import read_workload

    found = []
    for path in files:
        workload = read_workload(path)
        found.append(workload.scaled(scale, seconds))
        say(workload.said(found[-1], scale))
    return found


def _check_plot(path: Path) -> None:
    """Before anything is measured: a mistake would cost all of it."""
    from nearcast.experiments import plot as _  # noqa: F401 (says so if matplotlib is missing)

    if path.suffix.lower() != ".png":
        raise UsageError(f"--plot {path}: only PNG can be drawn; give a name that ends in .png")
    if not path.parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.parent}; create it first")


async def _profile(
    url: str,
    broker: str,
    settings: ProfileSettings,
    given: list[Configuration],
    *,
    at_least: bool | None,
    force: bool,
) -> tuple[Profile, bool]:
    """`at_least`: whether to apply a lower bound too; None: apply nothing."""
    from nearcast.runtime.console import Console
    from nearcast.runtime.driver import parse_url
    from nearcast.runtime.profiling import profile as profiling

    _, credentials = parse_url(url)
    async with Console(url) as console:
        (name,) = chosen(await console.overview(timeout_s=ASK_S), [broker])
        view = await quiet(console, name, force=force)
        runs = settings.runs + len(given)
        say(f"{name}: measuring {runs} times for {settings.seconds:g} s ...")
        with shown_progress() as progress:
            found = await profiling.profile(view.url, credentials, settings, given, progress)
        threshold = found.threshold
        applied = at_least is not None and not threshold.problem and (at_least or not threshold.at_least)
        if applied:
            await console.set_messages_high(name, threshold.messages_high_per_s)
    return found, applied


# --- what is shown


def _data(found: Profile) -> dict[str, object]:
    runs = [
        {**msgspec.structs.asdict(one), "kept_share": one.kept_share, "limited_by": one.limited_by}
        for one in found.runs
    ]
    return {"runs": runs, "correlations": found.correlations, "threshold": found.threshold}


def _print(found: Profile) -> None:
    runs = sorted(found.runs, key=lambda one: one.output_per_s)
    limit_s = found.threshold.limit_s
    print_table(RUN_COLUMNS, [_row(one, limit_s) for one in runs])
    rows = [(name, "-" if value is None else f"{value:+.2f}") for name, value in found.correlations.items()]
    print_table(("p95 goes with", "Spearman"), sorted(rows, key=lambda row: -abs(found.correlations[row[0]] or 0.0)))
    print_table(("", ""), threshold_rows(found.threshold))


def _row(one: Run, limit_s: float | None) -> tuple[str, ...]:
    configuration = one.configuration
    return (
        configuration.name or "sweep",
        f"{configuration.topics}",
        f"{configuration.publishers}",
        f"{configuration.subscribers}",
        f"{configuration.payload_bytes:,}",
        f"{one.published_per_s / configuration.topics:,.0f}",
        f"{one.output_per_s:,.0f}",
        f"{one.output_bytes_per_s / 1e6:,.1f}",
        *(f"{value_s * 1e3:.2f}" for value_s in (one.latency_p50_s, one.latency_p95_s, one.latency_p99_s)),
        f"{one.cpu_share * 100:.0f}",
        f"{one.measuring_cpu_share * 100:.0f}",
        remark(one, limit_s),
    )


def remark(one: Run, limit_s: float | None) -> str:
    said = []
    if limit_s is not None and one.latency_p95_s > limit_s:
        said.append("slow")
    if not one.kept_rate:
        said.append(f"{one.kept_share:.0%} of the asked rate")
    if said and one.limited_by is not None:
        said.append(f"limited by {one.limited_by}")
    return ", ".join(said)


def threshold_rows(found: Threshold) -> list[tuple[str, str]]:
    if found.problem:
        return [("R_out^th, messages/s out", f"not found: {found.problem}")]
    sign = "at least " if found.at_least else ""
    unloaded = "not known" if found.unloaded_p95_s is None else f"{found.unloaded_p95_s * 1e3:.2f} ms"
    limit_ms = (found.limit_s or 0.0) * 1e3
    return [
        ("R_out^th, messages/s out", f"{sign}{found.messages_high_per_s:,.0f}"),
        ("unloaded p95", unloaded),
        ("slow is above", f"{limit_ms:.2f} ms"),
        ("slow runs", f"{found.slow} of {found.runs}; {found.misplaced} on the wrong side of the threshold"),
    ]


def _conclude(broker: str, found: Threshold, *, wanted: bool, applied: bool) -> None:
    if applied:
        say(f"{broker}: the policy epulsar now allows {found.messages_high_per_s:,.0f} messages/s out")
        return
    if found.problem:
        say(f"not applied: {found.problem}")
    elif wanted:
        say("not applied: no run above it was slow, so it is a lower bound; repeat with --at-least, or higher rates")
    else:
        by_hand = f"nearcast brokers messages {broker} {found.messages_high_per_s:.0f}"
        say(f"not applied: repeat with --apply, or run: {by_hand}")
    if wanted:
        raise typer.Exit(1)


# --- the picture


def _draw(broker: str, found: Profile, path: Path) -> None:
    from nearcast.experiments import plot

    with errors_as_exit_codes():
        try:
            plot.draw(chart(broker, found), path)
        except OSError as error:
            raise UsageError(f"--plot {path}: it cannot be written ({error.strerror})") from None
    say(f"picture: {path}")


def chart(broker: str, found: Profile) -> Chart:
    from nearcast.experiments.chart import Chart, Colour, Limit, Line, Panel, Sign
    from nearcast.runtime.calibration import LimitedBy

    threshold, limit_s = found.threshold, found.threshold.limit_s
    slow = [one for one in found.runs if limit_s is not None and one.latency_p95_s > limit_s]
    unclear = [one for one in slow if one.limited_by is LimitedBy.MEASURING]
    groups = (
        ("as without load", [one for one in found.runs if one not in slow], Colour.BLUE, Sign.CIRCLE),
        ("slow", [one for one in slow if one not in unclear], Colour.ORANGE, Sign.CROSS),
        ("measuring side busy, not counted", unclear, Colour.GREY, Sign.DIAMOND),
    )
    lines: tuple[Line, ...] = ()
    if high := threshold.messages_high_per_s:
        sign = "at least " if threshold.at_least else ""
        ends_ms = [pick(one.latency_p95_s for one in found.runs) * 1e3 for pick in (min, max)]
        label = f"R_out^th: {sign}{high:,.0f} messages/s"
        lines = (Line(label=label, x=[high, high], y=ends_ms, colour=Colour.GREEN, dashed=True),)
    panel = Panel(
        y_label="p95 of latency (ms)",
        y_is_log=True,
        lines=lines,
        marks=tuple(_marks(*group) for group in groups if group[1]),
        limits=() if limit_s is None else (Limit(label=f"slow is above {limit_s * 1e3:.2f} ms", y=limit_s * 1e3),),
    )
    return Chart(
        title=f"Latency of {broker} by the rate it delivers", x_label="messages/s out", x_is_log=True, panels=(panel,)
    )


def _marks(label: str, runs: list[Run], colour: Colour, sign: Sign) -> Marks:
    from nearcast.experiments.chart import Marks

    return Marks(
        label=label,
        x=[one.output_per_s for one in runs],
        y=[one.latency_p95_s * 1e3 for one in runs],
        colour=colour,
        sign=sign,
    )
