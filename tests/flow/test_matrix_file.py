"""Matrix files: the forms there are, and what is said about a bad one."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearcast.errors import UsageError
from nearcast.flow.network import read_matrix


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "matrix.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_matrix_with_names_is_read(tmp_path: Path) -> None:
    paris = '"EU (Paris) eu-west-3"'
    text = f",Dallas,{paris},São Paulo\nDallas,0.000,44.5,1\n{paris},44.4,2.62,3\nSão Paulo,5,6,0\n"
    places, round_trip_ms = read_matrix(written(tmp_path, text))
    assert places == ("Dallas", "EU (Paris) eu-west-3", "São Paulo")
    assert round_trip_ms.tolist() == [[0.0, 44.5, 1.0], [44.4, 2.62, 3.0], [5.0, 6.0, 0.0]]


def test_holes_take_the_other_direction_or_the_median(tmp_path: Path) -> None:
    _, round_trip_ms = read_matrix(written(tmp_path, ",a,b,c\na,0,,\nb,10,0,7\nc,,,0\n"))
    assert round_trip_ms[0, 1] == 10.0
    assert round_trip_ms[2, 1] == 7.0
    assert round_trip_ms[0, 2] == round_trip_ms[2, 0] == 0.0  # of 0, 10, 0, 7, 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a matrix"),
        (",a,b\na,0,1\n", "not a matrix"),
        (",a,b,c\na,0,1,1\nb,1,0,1\n", "3 places in the first line but 2 lines follow: make it square"),
        (",a,a\na,0,1\na,1,0\n", "named twice"),
        (",a,b\na,0,1\nc,1,0\n", "line 3: begins with 'c', expected 'b'"),
        (",a,b\na,0,1\nb,1\n", "line 3: 1 values for 2 places"),
        (",a,b\na,0,fast\nb,1,0\n", "line 2, b: 'fast' is not a round trip in ms"),
        (",a,b\na,0,-3\nb,1,0\n", "line 2, b: '-3' is not"),
        (",a,b\na,0,nan\nb,1,0\n", "line 2, b: 'nan' is not"),
        (",a,b\na,0,inf\nb,1,0\n", "line 2, b: 'inf' is not"),
        (",a,b\na,,\nb,,\n", "the matrix has no values"),
    ],
)
def test_a_bad_matrix_is_refused_with_the_place_of_the_fault(tmp_path: Path, text: str, said: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as refused:
        read_matrix(path)
    assert said in str(refused.value)
    assert str(path) in str(refused.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the matrix"):
        read_matrix(tmp_path / "gone.csv")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot read the matrix"):
        read_matrix(tmp_path / "binary")
