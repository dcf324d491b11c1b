"""Pictures: draws a chart into a PNG file, without a screen.

This is the only module that uses matplotlib. It uses the object interface, which leaves no global state behind.
"""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator

from nearcast.experiments.chart import Chart, Colour, Line, Panel

WIDTH_IN = 7.5
PANEL_IN = 2.4
LONE_PANEL_IN = 3.3
HEAD_IN = 0.9
DPI = 110
LEGEND_COLUMNS = 3
LIMIT_STYLES = (":", "-.", "--")
MARK_AREA = 20.0  # points squared
DAY_S = 86400.0
TIME_STEPS_S = (10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800)
TIMES_MOST = 8  # labels on the axis
HEADROOM = 1.08  # of the y axis above the highest value, so that marks are not cut off


def draw(chart: Chart, path: Path) -> None:
    height_in = PANEL_IN * len(chart.panels) if len(chart.panels) > 1 else LONE_PANEL_IN
    figure = Figure(figsize=(WIDTH_IN, HEAD_IN + height_in), dpi=DPI, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(chart.title, fontsize=11)
    all_axes = figure.subplots(len(chart.panels), 1, sharex=True, squeeze=False)[:, 0]
    for axes, panel in zip(all_axes, chart.panels, strict=True):
        _draw_panel(axes, panel)
    all_axes[-1].set_xlabel(chart.x_label)
    if chart.x_is_log:
        all_axes[-1].set_xscale("log")
    if chart.x_is_time:
        _show_times(all_axes[-1], chart)
    figure.savefig(path, metadata={"Software": None})  # the same bytes with every version


def _show_times(axes: Axes, chart: Chart) -> None:
    """Label the axis with round times of the day, with the date if there is more than one day."""
    times_s = [x for panel in chart.panels for line in panel.lines for x in line.x]
    if not times_s:
        return
    first_s, last_s = min(times_s), max(times_s)
    axes.set_xlim(first_s, max(last_s, first_s + 1))
    step_s = next((step for step in TIME_STEPS_S if (last_s - first_s) / step <= TIMES_MOST), TIME_STEPS_S[-1])
    axes.xaxis.set_major_locator(MultipleLocator(step_s))
    form = "%H:%M:%S" if step_s < 60 else "%H:%M" if last_s - first_s < DAY_S else "%d %b %H:%M"
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: dt.datetime.fromtimestamp(x, dt.UTC).strftime(form)))


def _is_empty(panel: Panel) -> bool:
    values = [y for line in (*panel.lines, *panel.right_lines) for y in line.y]
    return not panel.marks and all(y is None or not math.isfinite(y) for y in values)


def _draw_panel(axes: Axes, panel: Panel) -> None:
    if _is_empty(panel):
        axes.text(0.5, 0.5, "no data", transform=axes.transAxes, ha="center", va="center", color=Colour.GREY)
        axes.set_yticks([])
        axes.set_ylabel(panel.y_label)
        return
    for line in panel.lines:
        _draw_line(axes, line)
    for limit, style in zip(panel.limits, LIMIT_STYLES, strict=False):
        axes.axhline(limit.y, color=Colour.GREY, linestyle=style, linewidth=1.2, label=limit.label)
    for marks in panel.marks:
        shape = {"color": marks.colour.value, "edgecolors": "white", "linewidths": 0.6, "zorder": 3.0}
        axes.scatter(marks.x, marks.y, marker=marks.sign.value, s=MARK_AREA, label=marks.label, **shape)  # type: ignore[arg-type]
    axes.set_ylabel(panel.y_label)
    if panel.y_is_log:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, panel.y_max if panel.y_max is not None else _top(panel))
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.margins(x=0.02)
    handles, labels = axes.get_legend_handles_labels()
    if panel.right_lines:
        more_handles, more_labels = _draw_right(axes, panel)
        handles, labels = [*handles, *more_handles], [*labels, *more_labels]
    # Above the panel, because inside it might hide a line.
    axes.legend(
        handles, labels, fontsize=8, frameon=False, ncols=LEGEND_COLUMNS, loc="lower left", bbox_to_anchor=(0, 1)
    )


def _draw_right(axes: Axes, panel: Panel) -> tuple[list[Artist], list[str]]:
    right = axes.twinx()
    for line in panel.right_lines:
        _draw_line(right, line)
    right.set_ylabel(panel.right_label)
    highest = max((y for line in panel.right_lines for y in line.y if y is not None), default=1.0)
    right.set_ylim(0, highest * HEADROOM)
    right.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    handles, labels = right.get_legend_handles_labels()
    return list(handles), list(labels)


def _draw_line(axes: Axes, line: Line) -> None:
    values = [math.nan if y is None else y for y in line.y]
    axes.plot(
        line.x,
        values,
        color=line.colour.value,
        label=line.label,
        linewidth=1.4,
        linestyle="--" if line.dashed else "-",
        marker="." if line.dotted_points else "",
        drawstyle="steps-post" if line.steps else "default",
    )


def _top(panel: Panel) -> float:
    values = [y for line in panel.lines for y in line.y if y is not None and math.isfinite(y)]
    values += [limit.y for limit in panel.limits] + [y for marks in panel.marks for y in marks.y]
    return max(values, default=1.0) * HEADROOM or 1.0
