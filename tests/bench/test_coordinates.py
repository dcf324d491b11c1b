"""The benchmark of latency estimates: how the file is read and cut, and what a small run gives."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from nearcast.bench.coordinates import measure_coordinates, split_of, vivaldi_estimates
from nearcast.bench.matrix_file import read_round_trips
from nearcast.cli import bench_coordinates
from nearcast.cli.app import app
from nearcast.coordinates.worlds import World, cities
from nearcast.errors import UsageError


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "matrix.csv"
    path.write_text(text, encoding="utf-8")
    return path


def world_file(tmp_path: Path, world: World) -> Path:
    """The world in ms, with names that only a CSV reader can tell apart."""
    names = [f'city "{number}", far' for number in range(len(world))]
    path = tmp_path / "world.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["", *names])
        writer.writerows(
            [name, *(f"{rtt_s * 1e3:.3f}" for rtt_s in row)] for name, row in zip(names, world, strict=True)
        )
    return path


# --- the file


PLAIN = "0,1,2\n1,0,3\n2,3,0\n"


@pytest.mark.parametrize(
    "text",
    [
        PLAIN,
        ",a,b,c\na,0,1,2\nb,1,0,3\nc,2,3,0\n",
        "a,b,c\n0,1,2\n1,0,3\n2,3,0\n",
        "a,0,1,2\nb,1,0,3\nc,2,3,0\n",
        "from,a,b,c\na,0,1,2\nb,1,0,3\nc,2,3,0\n",
        ',"a, b","say ""c""",d\n"a, b",0,1,2\n"say ""c""",1,0,3\nd,2,3,0\n',
        ",0,1,2\n0,0,1,2\n1,1,0,3\n2,2,3,0\n",
        "id,7,9,12\n7,0,1,2\n9,1,0,3\n12,2,3,0\n",
        "\ufeff 0, 1, 2\n\n1,0,3\r\n2,3,0",
        ",1.0,2\n1,,3\n2,3,\n",
        "5,1,2\n1,7,3\n2,3,9\n",
        "0,1,1\n1,0,3\n3,3,0\n",
        "0,,2\n1,0,3\n,nan,0\n",
        ";a;b;c\r\na;0;1;2\r\nb;1;0;3\r\nc;2;3;0\r\n",
        "\ta\tb\tc\na\t0\t1\t2\nb\t1\t0\t3\nc\t2\t3\t0\n",
        "  0 1  2\n1 0 3 \n 2 3 0\n",
        "0,-,2\n1,0,N/A\nnull,3,0\n   \n",
    ],
    ids=[
        "no names",
        "names",
        "a line of names",
        "a column of names",
        "a named corner",
        "quoted names",
        "names that count",
        "numbers as names",
        "spaces and empty lines",
        "blank diagonal",
        "diagonal is ignored",
        "mean of both directions",
        "one direction",
        "semicolons",
        "tabs",
        "only spaces",
        "marks of what is unknown",
    ],
)
def test_all_forms_of_a_matrix_are_read(tmp_path: Path, text: str) -> None:
    assert read_round_trips(written(tmp_path, text)).tolist() == [[0, 1, 2], [1, 0, 3], [2, 3, 0]]


def test_what_neither_direction_has_is_unknown(tmp_path: Path) -> None:
    matrix = read_round_trips(written(tmp_path, "0,,2\n,0,3\n2,3,0\n"))
    assert np.isnan(matrix).tolist() == [[False, True, False], [True, False, False], [False, False, False]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("\n\n", "the file is empty"),
        ("0,1\n1,0\n2,3\n", "3 lines and 2 columns of round trips: make it square"),
        (",a,b,c\na,0,1,2\nb,1,0,3\n", "make it square"),
        ("0,1,2\n1,0\n2,3,0\n", "line 2: 2 columns, the first line has 3"),
        ("0,fast,2\n1,0,3\n2,3,0\n", "line 1, column 2: 'fast' is not"),
        (",a,b\na,0,fast\nb,1,0\n", "line 2, column 3: 'fast' is not a round trip in ms"),
        (",a,b\na,0,-1\nb,1,0\n", "line 2, column 3: '-1' is not"),
        (",a,b\na,0,inf\nb,1,0\n", "'inf' is not"),
        (",a,b\na,0,10001\nb,1,0\n", "from 0 to 10,000; leave it blank if unknown"),
    ],
)
def test_a_bad_matrix_is_refused_with_the_place_of_the_fault(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_round_trips(written(tmp_path, text))
    assert said in str(refused.value)
    assert "matrix.csv" in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the matrix"):
        read_round_trips(tmp_path / "gone.csv")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot read the matrix"):
        read_round_trips(tmp_path / "binary")


# --- cutting


def test_a_cut_is_as_described() -> None:
    matrix_s = np.array(cities(40, seed=1))
    matrix_s[3, 9] = matrix_s[9, 3] = np.nan
    cut = split_of(matrix_s, 16, seed=2)
    assert cut.truth_s.shape == (30, 10)
    assert (cut.probed.sum(axis=1) <= 5).all()  # half the brokers
    assert np.median(cut.probed.sum(axis=1)) == 5
    assert not (cut.probed & cut.held_out).any()
    assert not (np.isnan(cut.truth_s) & (cut.probed | cut.held_out)).any()
    assert 0.2 < cut.held_out.mean() < 0.4
    again = split_of(matrix_s, 16, seed=2)
    assert (again.probed == cut.probed).all()
    assert not (split_of(matrix_s, 16, seed=3).held_out == cut.held_out).all()


def test_vivaldi_gets_a_fair_chance() -> None:
    """In a world that coordinates can describe it is nearly exact, although it has probes only."""
    cut = split_of(np.array(cities(60, seed=1, access_s=0.0)), 7, seed=1)
    errors = np.abs(vivaldi_estimates(cut, 1) - cut.truth_s)[cut.held_out] / cut.truth_s[cut.held_out]
    assert np.median(errors) < 0.02


# --- runs


def test_a_small_run_gives_every_figure(tmp_path: Path) -> None:
    path = world_file(tmp_path, cities(16, seed=1))
    result = CliRunner().invoke(app, ["bench", "coordinates", "--matrix", str(path), "--probes", "3", "--json"])
    assert result.exit_code == 0, result.stderr
    figures = json.loads(result.stdout)
    assert (figures["nodes"], figures["brokers"], figures["clients"]) == (16, 4, 12)
    assert (figures["probes"], figures["splits"], figures["missing_share"]) == (2, 8, 0.0)
    assert 0 < figures["estimator_median_rel_error"] < figures["estimator_p90_rel_error"]
    assert figures["ratio"] == pytest.approx(
        figures["vivaldi_median_rel_error"] / figures["estimator_median_rel_error"]
    )
    assert 0 < figures["decision_within_5pct"] <= figures["decision_within_5pct_measured8"] == 1.0
    assert 0.5 < figures["worst_predicted_over_true"] < 1.5
    assert "split 8 of 8" in result.stderr


def test_the_table_shows_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearcast.bench.coordinates.CYCLES", 10)
    path = world_file(tmp_path, cities(8, seed=1))
    result = CliRunner().invoke(app, ["bench", "coordinates", "--matrix", str(path)])
    assert result.exit_code == 0, result.stderr
    assert "2 brokers, 6 clients with 1 probes each" in result.stdout
    assert "too few clients" in result.stdout


def test_the_estimator_is_better_than_vivaldi_and_the_same_every_time(tmp_path: Path) -> None:
    path = world_file(tmp_path, cities(60, seed=1, dimensions=3))
    found, again = (measure_coordinates(path, 7, splits=1) for _ in range(2))
    assert found.ratio is not None
    assert found.ratio > 1.5
    assert found.estimator_median_rel_error == again.estimator_median_rel_error
    assert found.decision_within_5pct is not None
    assert found.decision_within_5pct > 0.7


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (PLAIN, "3 nodes are too few: at least 8"),
        ("\n".join([",".join([""] * 8)] * 8) + "\n", "no round trips between different nodes"),
    ],
)
def test_too_little_is_said(tmp_path: Path, text: str, said: str) -> None:
    result = CliRunner().invoke(app, ["bench", "coordinates", "--matrix", str(written(tmp_path, text))])
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("rtt", ["0", "50"])
def test_equal_round_trips_are_no_trouble(tmp_path: Path, rtt: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearcast.bench.coordinates.CYCLES", 50)
    found = measure_coordinates(written(tmp_path, "\n".join([",".join([rtt] * 48)] * 48)), 6, splits=1)
    assert found.estimator_median_rel_error < 0.05


def test_people_see_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    bench_coordinates._progress(2, 8, "Vivaldi")
    bench_coordinates._clear()
    assert capsys.readouterr().err == "\r\x1b[K" + "█" * 6 + "░" * 18 + " 2 of 8 splits, Vivaldi\r\x1b[K"
