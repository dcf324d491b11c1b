"""`nearcast simulate protocol --variant forwarding`: Dynamoth's moves beside ours, on the same seeds."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from nearcast.cli.options import Output
from nearcast.cli.output import show
from nearcast.cli.running import say
from nearcast.cli.simulate import with_progress

if TYPE_CHECKING:
    from nearcast.sim.forwarding.comparison import Case, Outcome, Row

COLUMNS = (
    "faults",
    "protocol",
    "moves",
    "deliveries owed",
    "seeds with loss",
    "lost per million",
    "duplicated",
    "reordered",
)


class Comparison(msgspec.Struct, frozen=True):
    seeds: int
    first_seed: int
    seconds: float
    rows: list[Row]


def compare(seeds: range, workers: int | None, output: Output) -> int:
    """Run and print the comparison. Returns the exit code."""
    from nearcast.sim.forwarding.comparison import CASES, run_comparison, summarise

    began_s = time.monotonic()
    outcomes: dict[Case, list[Outcome]] = {case: [] for case in CASES}
    for found in with_progress(run_comparison(seeds, workers), len(seeds)):
        for outcome in found:
            outcomes[outcome.case].append(outcome)
            if outcome.violations:
                say(f"seed {outcome.seed} of nearcast failed: {outcome.violations[0]}")
    rows = [summarise(case, outcomes[case]) for case in CASES]
    comparison = Comparison(len(seeds), seeds.start, round(time.monotonic() - began_s, 1), rows)
    title = f"{comparison.seeds:,} seeds from {comparison.first_seed}, {comparison.seconds} s"
    show(output, comparison, COLUMNS, [_cells(row) for row in rows], title)
    failed = [seed for row in rows for seed in row.failed]
    if failed:
        say(f"nearcast failed in seeds {failed}")
    return 1 if failed else 0


def _cells(row: Row) -> tuple[str, ...]:
    return (
        "agent crashes" if row.crashes else "none",
        row.protocol,
        f"{row.moves:,}",
        f"{row.owed:,}",
        f"{row.share_of_seeds_with_loss:.1%}",
        f"{row.lost_per_million:,.0f}",
        f"{row.duplicated:,}",
        f"{row.reordered:,}",
    )
