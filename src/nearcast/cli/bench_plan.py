"""`nearcast bench plan`: the speed of a policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.options import Output, OutputOption
from nearcast.cli.output import show
from nearcast.cli.running import errors_as_exit_codes, say

if TYPE_CHECKING:
    from nearcast.bench.plan import PlanBench

COLUMNS = ("", "measured", "goal")
GOALS = {(100_000, 100): "<= 1,000 ms"}  # by topics and brokers


@errors_as_exit_codes()
def plan(
    policy: Annotated[str, typer.Option("--policy", metavar="NAME", help="dynamoth or hash_ring.")] = "dynamoth",
    topics: Annotated[int, typer.Option("--topics", min=1000, help="Topics of the cluster, all with load.")] = 100_000,
    brokers: Annotated[int, typer.Option("--brokers", min=2, help="Brokers of the cluster.")] = 100,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="How often; the medians count.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --output json.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Time a whole plan of a policy, and the paper's pseudocode in plain Python on a size that it finishes.

    Example: nearcast bench plan --policy dynamoth --topics 100000 --brokers 100 --json
    """
    from nearcast.bench.plan import measure_plan

    found = measure_plan(policy, topics, brokers, runs=rounds, progress=say)
    show(Output.JSON if as_json else output, found, COLUMNS, _rows(found))


def _rows(found: PlanBench) -> list[tuple[str, str, str]]:
    name, asked = found.policy, found.growth[-1]
    rows = [
        (f"{name}, {_size(size.topics, size.brokers)}", _ms(size.seconds), GOALS.get((size.topics, size.brokers), ""))
        for size in found.growth
    ]
    before, after = asked.highest_load_ratio_before, asked.highest_load_ratio_after
    rows.append(("  changes proposed", f"{asked.changes:,}", ""))
    rows.append(("  highest load ratio, before and after", f"{before:.2f}, {after:.2f}", ""))
    reference = found.reference
    if reference is not None:
        size = _size(reference.topics, reference.brokers)
        rows.append((f"the paper's pseudocode, {size}", _ms(reference.seconds_reference), ""))
        rows.append((f"{name}, {size}", _ms(reference.seconds), ""))
        rows.append(("  pseudocode against it", f"{reference.ratio:.1f} x", ""))
    return rows


def _size(topics: int, brokers: int) -> str:
    return f"{topics:,} topics, {brokers} brokers"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms"
