"""Results on disk: the JSON holds what was found, the picture shows it, and the same result gives the same bytes."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib.image
import msgspec
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from nearcast.errors import UsageError
from nearcast.experiments import plot
from nearcast.experiments.chart import Chart, Colour, Limit, Line, Marks, Panel
from nearcast.experiments.result import Result, open_folder, write


class Figures(msgspec.Struct, frozen=True):
    answer: int


def result(panels: int = 1) -> Result:
    line = Line(label="load", x=[0, 1, 2], y=[1.0, None, 3.0], colour=Colour.BLUE)
    count = Line(label="servers", x=[0, 1, 2], y=[1, 2, 2], colour=Colour.GREY, steps=True)
    panel = Panel(
        y_label="load",
        lines=(line,),
        marks=(Marks(label="rebalancing", x=[1], y=[2.0], colour=Colour.ORANGE),),
        limits=(Limit(label="limit", y=2.5),),
        right_label="servers",
        right_lines=(count,),
    )
    chart = Chart(title="a test", x_label="time (s)", panels=(panel,) * panels)
    series = {"load": np.array([1.0, np.nan]), "number": np.int64(7)}
    return Result(name="test", figures=Figures(42), series=series, chart=chart, rows=(("answer", "42"),))


def test_the_json_holds_figures_and_series(tmp_path: Path) -> None:
    files = write(result(), tmp_path)
    assert json.loads(files.json.read_text()) == {
        "experiment": "test",
        "figures": {"answer": 42},
        "series": {"load": [1.0, None], "number": 7},
    }


def test_the_picture_shows_every_colour_of_the_chart(tmp_path: Path) -> None:
    pixels = matplotlib.image.imread(write(result(), tmp_path).png)[:, :, :3]
    for colour in (Colour.BLUE, Colour.ORANGE, Colour.GREY):
        wanted = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
        assert (np.abs(pixels - wanted).max(axis=2) < 0.02).sum() > 20


def test_more_panels_make_a_taller_picture(tmp_path: Path) -> None:
    one, three = (matplotlib.image.imread(write(result(panels), tmp_path).png).shape for panels in (1, 3))
    assert one[1] == three[1]
    assert three[0] > 1.7 * one[0]


def test_the_same_result_gives_the_same_bytes(tmp_path: Path) -> None:
    first, second = write(result(), open_folder(tmp_path / "a")), write(result(), open_folder(tmp_path / "b"))
    assert first.png.read_bytes() == second.png.read_bytes()
    assert first.json.read_bytes() == second.json.read_bytes()


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--out"):
        open_folder(tmp_path / "file" / "folder")


def texts(chart: Chart, monkeypatch: pytest.MonkeyPatch, path: Path) -> list[str]:
    """All that stands in a picture."""
    drawn: list[Figure] = []
    monkeypatch.setattr(plot, "FigureCanvasAgg", lambda figure: drawn.append(figure) or FigureCanvasAgg(figure))
    plot.draw(chart, path)
    return [text.get_text() for text in drawn[0].findobj(Text)]


def test_times_are_shown_as_times_and_an_empty_panel_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noon_s = 1_699_963_200  # 14 November 2023, 12:00 UTC
    line = Line(label="load", x=[noon_s, noon_s + 900], y=[1.0, 2.0], colour=Colour.BLUE)
    nothing = Line(label="p50", x=[noon_s, noon_s + 900], y=[None, None], colour=Colour.BLUE)
    panels = (Panel(y_label="load", lines=(line,)), Panel(y_label="latency", lines=(nothing,)))
    found = texts(Chart(title="t", x_label="UTC", x_is_time=True, panels=panels), monkeypatch, tmp_path / "p.png")
    assert {"12:00", "12:10", "no data"} <= set(found)
    assert "p50" not in found
