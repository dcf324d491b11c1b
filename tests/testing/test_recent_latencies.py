"""The window of recent latencies, and percentiles."""

from __future__ import annotations

import pytest

from nearcast.testing.load import RECENT_S, Recent, percentile


def test_what_is_old_is_forgotten() -> None:
    recent = Recent()
    for second in range(10):
        recent.add(float(second), second / 10)
    assert recent.latencies_s(9.0) == [0.6, 0.7, 0.8, 0.9]
    assert recent.latencies_s(9.0 + RECENT_S) == [0.9]
    assert recent.latencies_s(10.0 + RECENT_S) == []


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([], 50, None), ([7.0], 50, 7.0), ([7.0], 99, 7.0), ([3.0, 1.0, 2.0], 50, 2.0), (range(1, 101), 99, 99.0)],
)
def test_percentiles(values: list[float], percent: int, expected: float | None) -> None:
    assert percentile(values, percent) == expected
