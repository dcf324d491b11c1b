"""Figure 7: silences are told apart, and a small run on real servers loses nothing."""

from __future__ import annotations

import asyncio
from array import array

import pytest

from nearcast.errors import UsageError
from nearcast.experiments.epulsar import migration
from nearcast.experiments.epulsar.migration import (
    CountPoint,
    DelayPoint,
    MigrationFigures,
    MigrationSettings,
    report,
    round_trips,
    run_migration,
)
from nearcast.experiments.epulsar.moving import Moved
from nearcast.experiments.epulsar.streams import Silence, Streams, Tally, gap_s, raw_gap_s, silences

# --- silences


def streams_with(rate_per_s: float, **arrivals_s: list[float]) -> Streams:
    made = Streams([], list(arrivals_s), rate_per_s)
    made.arrivals_s = {topic: array("d", times_s) for topic, times_s in arrivals_s.items()}
    return made


def test_a_silence_is_what_is_longer_than_the_interval() -> None:
    arrivals_s = [0.0, 0.1, 0.2, 0.5, 0.6, 1.6, 1.7]
    assert silences(arrivals_s, 0.15, 0.55, 0.11) == [Silence(0.2, 0.5, 0.11)]
    assert silences(arrivals_s, 0.3, 0.4, 0.11) == [Silence(0.2, 0.5, 0.11)]  # it is in the midst of it
    assert silences(arrivals_s, 0.0, 0.15, 0.11) == []
    assert silences(arrivals_s, 5.0, 6.0, 0.11) == [Silence(5.0, 6.0, 0.11)]  # nothing came at all
    assert Silence(0.2, 0.5, 0.11).excess_s == pytest.approx(0.19)
    assert Silence(0.2, 0.5, 0.11).beyond_s(0.4, 0.9) == 0.0


def test_what_silences_topics_at_rest_too_is_not_the_moves_fault() -> None:
    moving = streams_with(10, moved=[0.0, 0.1, 0.5, 0.6, 0.9, 1.0])
    calm = [number * 0.01 for number in range(101)]
    stalled = [at_s for at_s in calm if not 0.15 < at_s < 0.44]
    assert raw_gap_s(moving, "moved", 0.0, 1.0) == pytest.approx(0.3)
    assert gap_s(moving, streams_with(100, one=calm), "moved", 0.0, 1.0) == pytest.approx(0.3)
    # The first silence of 0.4 s fell into a stall of 0.29 s; the second, of 0.3 s, did not.
    found_s = gap_s(moving, streams_with(100, one=calm, two=stalled), "moved", 0.0, 1.0)
    assert found_s == pytest.approx(0.2, abs=0.02)


def test_the_times_of_a_move() -> None:
    moved = Moved("t", queued_s=1.0, begun_s=3.0, releasing_s=4.0, released_s=4.5, ended_s=6.0)
    assert (moved.move_s, moved.queued_move_s, moved.release_s) == (3.0, 5.0, 0.5)


# --- the experiment


def point(delay_ms: float, gap: float, downtime: float) -> DelayPoint:
    return DelayPoint(
        delay_ms=delay_ms,
        moves=10,
        gap_p50=1.0,
        gap_p99=gap,
        gap_most=gap + 1,
        raw_p99=gap + 2,
        still_p99=3.0,
        release_p50=2 * delay_ms,
        move_p50=8 * delay_ms,
        queued_p50=20 * delay_ms,
        baseline_release_p50=4 * delay_ms,
        baseline_downtime_p50=downtime,
        baseline_downtime_p99=downtime,
    )


def test_the_report_names_the_worst_distance() -> None:
    points = [point(0.0, 2.0, 1.0), point(40.0, 5.0, 241.0)]
    counted = [CountPoint(topics=16, in_flight=0, queued_p50=1304.0, move_p50=163.0)]
    result = report(MigrationSettings(), points, counted, Tally(published=100, delivered=98), 9.0)
    figures = result.figures
    assert isinstance(figures, MigrationFigures)
    assert (figures.client_gap_ms_p99, figures.client_gap_ms_most, figures.client_gap_raw_ms_p99) == (5.0, 6.0, 7.0)
    assert (figures.lost, figures.moves, figures.within_bound) == (2, 20, True)
    assert figures.baseline_round_trips == 3.0
    assert round_trips(points[:1]) is None
    assert ("16 topics, one by one", "1,304 ms with queueing, 163 ms without") in result.rows
    assert not report(MigrationSettings(), [point(0.0, 21.0, 1.0)], [], Tally(), 0.0).figures.within_bound  # type: ignore[attr-defined]


@pytest.mark.live
def test_topics_move_with_a_distant_controller_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migration, "STILL_S", 0.3)
    settings = MigrationSettings(
        delays_ms=(0.0, 30.0), topics=8, in_flight=4, baseline_topics=3, counts=(4,), executors=(2,)
    )
    figures = asyncio.run(run_migration(settings)).figures
    assert isinstance(figures, MigrationFigures)
    assert (figures.lost, figures.gaps, figures.interruptions, figures.moves) == (0, 0, 0, 32)
    far = figures.delays[1]
    assert far.move_p50 >= 6 * 30 - 10  # prepare, switch and settle are a round trip each; it is seen a little late
    assert 2 * 30 - 10 <= far.release_p50 < 300
    assert far.baseline_downtime_p50 >= 3 * 2 * 30
    assert far.baseline_release_p50 >= 2 * 2 * 30
    assert far.gap_p50 < 6 * 30  # and does not grow with the distance
    assert [(each.topics, each.in_flight) for each in figures.counts] == [(4, 2), (4, 0)]


def test_settings_that_cannot_be_are_refused() -> None:
    for wrong in ({"rate_per_s": 10.0}, {"topics": 8}, {"in_flight": 0}, {"delays_ms": ()}, {"delays_ms": (-1.0,)}):
        with pytest.raises(UsageError):
            MigrationSettings(**wrong)  # type: ignore[arg-type]
