"""`nearcast bench channels`: the speed of one execution of a channel for all its subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.options import Output, OutputOption
from nearcast.cli.output import show
from nearcast.cli.running import errors_as_exit_codes, say

if TYPE_CHECKING:
    from nearcast.bench.channels import ChannelsBench

COLUMNS = ("", "measured", "goal")


@errors_as_exit_codes()
def channels(
    records: Annotated[int, typer.Option("--records", min=1000, help="New records of an execution.")] = 10_000_000,
    subscriptions: Annotated[
        int, typer.Option("--subscriptions", min=20, help="Subscriptions, with 1,000 parameter sets.")
    ] = 100_000,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often; the best counts.")] = 3,
    sample: Annotated[int, typer.Option("--sample", min=1, help="Single queries to estimate all from.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Time an equality channel and a distance channel, beside DuckDB and beside one query for each subscription.

    Example: nearcast bench channels --records 10000000 --subscriptions 100000 --json
    """
    from nearcast.bench.channels import measure_channels

    found = measure_channels(records, subscriptions, rounds=rounds, sample=sample, progress=say)
    show(Output.JSON if as_json else output, found, COLUMNS, _rows(found))


def _rows(found: ChannelsBench) -> list[tuple[str, str, str]]:
    share = "" if found.pairs_matching_share is None else f", {found.pairs_matching_share:.1%} of the pairs in a cell"
    return [
        ("equality", _seconds(found.equality_s), ""),
        ("  rows, bytes written", f"{found.equality_output.rows:,}, {found.equality_output.bytes:,}", ""),
        ("  DuckDB", _seconds(found.duckdb_equality_s), ""),
        ("  against DuckDB", _ratio(found.ratio_equality), "<= 5 x"),
        ("  one query each, estimated", _seconds(found.naive_equality_s_estimated), ""),
        ("  one query each against ours", _ratio(found.ratio_naive), ">= 50 x"),
        ("  one query per parameter set against ours", _ratio(found.ratio_naive_sets), ""),
        (f"distance, {found.radius_m:g} m{share}", _seconds(found.distance_s), ""),
        ("  rows, bytes written", f"{found.distance_output.rows:,}, {found.distance_output.bytes:,}", ""),
        ("  DuckDB", _seconds(found.duckdb_distance_s), ""),
        ("  against DuckDB", _ratio(found.ratio_distance), ""),
        ("the same results", "yes" if found.identical else "NO", "yes"),
        ("an execution over no new records", _seconds(found.overhead_s), "<= 0.5 s"),
    ]


def _seconds(value: float | None) -> str:
    return "not installed" if value is None else f"{value:,.2f} s"


def _ratio(value: float | None) -> str:
    return "" if value is None else f"{value:,.2f} x"
