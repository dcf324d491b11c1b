"""Ramps: linear between points, level outside."""

from __future__ import annotations

import pytest

from nearcast.errors import UsageError
from nearcast.workloads.rgame import Ramp


def test_the_number_is_linear_between_points_and_stays_outside() -> None:
    ramp = Ramp(((10.0, 100), (20.0, 200), (40.0, 0)))
    assert [ramp.at(at_s) for at_s in (0, 10, 15, 20, 25, 39.9, 40, 99)] == [100, 100, 150, 200, 150, 1, 0, 0]
    assert ramp.most == 200


def test_a_steady_number_is_a_ramp() -> None:
    assert [Ramp.steady(7).at(at_s) for at_s in (0, 1e6)] == [7, 7]


@pytest.mark.parametrize("points", [(), ((1.0, 5), (1.0, 6)), ((2.0, 5), (1.0, 6))])
def test_times_must_grow(points: tuple[tuple[float, int], ...]) -> None:
    with pytest.raises(UsageError, match="growing times"):
        Ramp(points)


def test_there_are_no_negative_players() -> None:
    with pytest.raises(UsageError, match="must not be negative"):
        Ramp(((0.0, -1),))
