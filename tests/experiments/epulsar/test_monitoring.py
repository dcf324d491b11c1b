"""Monitoring traffic, and the accuracy of coordinates on a star."""

from __future__ import annotations

import pytest

from nearcast.experiments.epulsar import accuracy, monitoring


def test_a_report_does_not_grow_with_the_clients() -> None:
    figures = monitoring.run_monitoring().figures
    for kind in ("top8", "centroids"):
        sizes = figures.bytes_per_topic[kind].values()
        assert max(sizes) - min(sizes) < 0.02 * max(sizes)  # zeros at the end of a number are not written
        assert figures.growth[kind] == pytest.approx(1.0, abs=0.02)
    assert figures.growth["all_pairs"] > 50
    assert max(figures.bytes_per_topic["top8"].values()) < 400
    most = figures.bytes_per_s["top8"]["1000 x 256"]
    assert most == pytest.approx(1000 * figures.bytes_per_topic["top8"][256] / 5, rel=0.02)


def test_the_same_seed_gives_the_same_figures() -> None:
    assert monitoring.run_monitoring(3).figures == monitoring.run_monitoring(3).figures


@pytest.mark.parametrize("nodes", [2, 4, 32])
def test_coordinates_on_a_star_are_about_as_exact_as_in_the_paper(nodes: int) -> None:
    errors_s = accuracy.star_errors_s(nodes, 0.04, seed=0)
    assert len(errors_s) == nodes * (nodes - 1) // 2
    assert errors_s.mean() < 0.0035


def test_accuracy_has_a_figure_for_every_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "NODES", (2, 4))
    monkeypatch.setattr(accuracy, "RUNS", 1)
    result = accuracy.run_accuracy()
    assert result.figures.mean_error_ms.keys() == set(accuracy.RTT_MS)
    assert result.figures.mean_error_share_most < accuracy.PAPER_SHARE
    assert result.chart.panels[0].limits[0].y == accuracy.PAPER_MS
