"""Figure 3: how exact network coordinates are on a star, where all links are equal (section 5.3).

Every node measures one random peer a second, for ten minutes. A measurement is the round trip plus what queues add:
usually little, sometimes much. The figure is the error of the estimated round trip over all pairs of some runs.

It is ten minutes because the paper waits as long before it uses coordinates (section 5.5.1). Waiting longer does not
help on such a star: with 8 or 16 nodes, errors are larger after an hour.
"""

from __future__ import annotations

from random import Random

import msgspec
import numpy as np

from nearcast.coordinates.coordinate import distance_s
from nearcast.coordinates.vivaldi import Vivaldi
from nearcast.experiments.chart import Chart, Colour, Limit, Line, Panel
from nearcast.experiments.result import Progress, Result, silent

NAME = "epulsar-3"
NODES = (2, 4, 8, 16, 32, 64, 128)
RTT_MS = (20.0, 40.0, 80.0, 160.0)  # the paper varies it and does not say how
CYCLES = 600
RUNS = 5
QUEUE_S = 0.0003  # mean of what queues add
BURST_SHARE, BURST_S = 0.02, 0.010  # of measurements that meet a long queue, and its mean
PAPER_MS, PAPER_SHARE = 3.5, 0.06


class AccuracyFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Errors of all pairs, by round trip in ms, then by the number of nodes."""

    mean_error_ms: dict[float, dict[int, float]]
    p95_error_ms: dict[float, dict[int, float]]
    mean_error_ms_most: float
    mean_error_share_most: float
    paper_ms: float
    paper_share: float
    seed: int


def run_accuracy(seed: int = 0, progress: Progress = silent) -> Result:
    mean_ms: dict[float, dict[int, float]] = {rtt_ms: {} for rtt_ms in RTT_MS}
    p95_ms: dict[float, dict[int, float]] = {rtt_ms: {} for rtt_ms in RTT_MS}
    runs = [(rtt_ms, nodes) for rtt_ms in RTT_MS for nodes in NODES]
    for done, (rtt_ms, nodes) in enumerate(runs):
        progress(done, len(runs), f"{nodes} nodes, {rtt_ms:g} ms")
        errors_ms = np.concatenate([star_errors_s(nodes, rtt_ms / 1e3, seed + run) for run in range(RUNS)]) * 1e3
        mean_ms[rtt_ms][nodes] = float(errors_ms.mean())
        p95_ms[rtt_ms][nodes] = float(np.percentile(errors_ms, 95))
    most_ms = max(error for errors in mean_ms.values() for error in errors.values())
    most_share = max(error / rtt_ms for rtt_ms, errors in mean_ms.items() for error in errors.values())
    figures = AccuracyFigures(
        mean_error_ms=mean_ms,
        p95_error_ms=p95_ms,
        mean_error_ms_most=most_ms,
        mean_error_share_most=most_share,
        paper_ms=PAPER_MS,
        paper_share=PAPER_SHARE,
        seed=seed,
    )
    series = {"nodes": NODES, "mean_error_ms": mean_ms, "p95_error_ms": p95_ms}
    return Result(name=NAME, figures=figures, series=series, chart=_chart(figures), rows=_rows(figures))


def star_errors_s(nodes: int, rtt_s: float, seed: int) -> np.ndarray:
    """The errors of all pairs."""
    rng = Random(f"{seed} {nodes} {rtt_s}")
    members = [Vivaldi(seed=rng.randrange(1 << 30)) for _ in range(nodes)]
    for cycle in range(CYCLES):
        for number, node in enumerate(members):
            peer = (number + rng.randrange(1, nodes)) % nodes
            queue_s = rng.expovariate(1 / QUEUE_S) + (rng.random() < BURST_SHARE) * rng.expovariate(1 / BURST_S)
            node.observed(str(peer), members[peer].coordinate, rtt_s + queue_s, float(cycle))
    return np.array(
        [
            abs(distance_s(members[one].coordinate, members[other].coordinate) - rtt_s)
            for one in range(nodes)
            for other in range(one + 1, nodes)
        ]
    )


def _rows(figures: AccuracyFigures) -> tuple[tuple[str, str], ...]:
    rows = [
        (f"mean error (ms) at {rtt_ms:g} ms", ", ".join(f"{error:.2f}" for error in errors.values()))
        for rtt_ms, errors in figures.mean_error_ms.items()
    ]
    return (
        *rows,
        ("nodes", ", ".join(map(str, NODES))),
        ("largest mean error", f"{figures.mean_error_ms_most:.2f} ms, {figures.mean_error_share_most:.1%}"),
        ("the paper", f"below {PAPER_MS:g} ms and {PAPER_SHARE:.0%}"),
    )


_COLOURS = (Colour.GREEN, Colour.BLUE, Colour.PURPLE, Colour.ORANGE)


def _chart(figures: AccuracyFigures) -> Chart:
    columns = list(zip(RTT_MS, _COLOURS, strict=True))
    return Chart(
        title=f"{NAME}: error of network coordinates on a star",
        x_label="nodes",
        panels=(
            Panel(
                y_label="mean error (ms)",
                lines=tuple(
                    _line(f"{rtt_ms:g} ms", figures.mean_error_ms[rtt_ms], 1.0, colour) for rtt_ms, colour in columns
                ),
                limits=(Limit(label="the paper's largest", y=PAPER_MS),),
            ),
            Panel(
                y_label="of the round trip (%)",
                lines=tuple(
                    _line(f"_{rtt_ms:g}", figures.mean_error_ms[rtt_ms], 100 / rtt_ms, colour)
                    for rtt_ms, colour in columns
                ),
                limits=(Limit(label="_paper", y=PAPER_SHARE * 100),),
            ),
        ),
    )


def _line(label: str, errors: dict[int, float], unit: float, colour: Colour) -> Line:
    y = [error * unit for error in errors.values()]
    return Line(label=label, x=list(errors), y=y, colour=colour, dotted_points=True)
