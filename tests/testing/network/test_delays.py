"""How long bytes travel: computed without a clock or a socket."""

from __future__ import annotations

import random

import pytest

from nearcast.errors import UsageError
from nearcast.testing.network.relay import PIECE_BYTES, Direction, LinkShape

LIMIT_BYTES = 8 * 1024 * 1024


def test_the_same_seed_gives_the_same_delays() -> None:
    def arrivals(seed: int) -> list[float]:
        direction = Direction(LinkShape(0.01, jitter_s=0.02), random.Random(seed), LIMIT_BYTES)
        return [direction.arrival_s(100, float(second)) - second for second in range(20)]

    assert arrivals(7) == arrivals(7) != arrivals(8)
    assert all(0.01 - 1e-9 <= took_s <= 0.03 + 1e-9 for took_s in arrivals(7))


def test_the_token_bucket_lets_a_burst_pass_then_keeps_the_rate() -> None:
    shape = LinkShape(delay_s=0.5, bytes_per_s=1000, burst_bytes=2000)
    direction = Direction(shape, random.Random(1), LIMIT_BYTES)
    arrivals = [direction.arrival_s(1000, 10.0) for _ in range(5)]
    assert arrivals == pytest.approx([10.5, 10.5, 11.5, 12.5, 13.5])
    # A second without traffic earns 1000 bytes; a long one no more than the burst.
    assert direction.arrival_s(1000, 14.0) == pytest.approx(14.5)
    assert [direction.arrival_s(1000, 99.0) for _ in range(3)] == pytest.approx([99.5, 99.5, 100.5])


def test_a_narrow_link_holds_less_and_hands_over_smaller_pieces() -> None:
    narrow = Direction(LinkShape(0.1, bytes_per_s=100_000, burst_bytes=0), random.Random(1), LIMIT_BYTES)
    assert narrow.limit_bytes == 20_000
    assert narrow.piece_bytes == PIECE_BYTES
    wide = Direction(LinkShape(0.1, bytes_per_s=1e9), random.Random(1), LIMIT_BYTES)
    assert wide.limit_bytes == LIMIT_BYTES
    assert wide.piece_bytes == 5_000_000


def test_shapes_that_cannot_be_are_refused() -> None:
    for wrong in ({"delay_s": -1.0}, {"jitter_s": -0.1}, {"bytes_per_s": 0.0}, {"burst_bytes": -1}):
        with pytest.raises(UsageError, match="0 or more"):
            LinkShape(**wrong)
