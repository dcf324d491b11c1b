"""Logs: what they cover, and what is wrong with one."""

from __future__ import annotations

import msgspec
import pytest

from nearcast.core.model.logs import Log, covering, last_numbers, life_of, problem_of, stream_of

ORDERS = Log("orders", 7, ("order.*", "refund.?"), 3600.0, 1 << 20)
ALL = Log("all", 9, ("*",), 60.0, 1 << 20)


def test_a_topic_is_kept_by_every_log_that_covers_it() -> None:
    assert covering((ORDERS, ALL), b"order.1") == (ORDERS, ALL)
    assert covering((ORDERS, ALL), b"refund.1") == (ORDERS, ALL)
    assert covering((ORDERS, ALL), b"refund.12") == (ALL,)
    assert covering((ORDERS,), b"orders") == ()


def test_another_life_or_another_log_of_the_same_name_has_other_keys() -> None:
    again = msgspec.structs.replace(ORDERS, created=8)
    keys = {stream_of(log, life_of("b1", joined)) for log in (ORDERS, again) for joined in (1, 2)}
    assert len(keys) == 4
    assert len({*last_numbers(life_of("b1", 1)), *last_numbers(life_of("b1", 2))}) == 4


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"name": ""}, "bad log name ''"),
        ({"name": "a b"}, "bad log name 'a b'"),
        ({"name": "x" * 65}, "use 1 to 64 letters"),
        ({"topics": ()}, "a log of 0 topic patterns: give 1 to 64"),
        ({"topics": ("",)}, "bad topic pattern ''"),
        ({"topics": ("nc:*",)}, "bad topic pattern 'nc:"),
        ({"retain_s": 0.0}, "cannot be kept for 0 s"),
        ({"retain_s": float("nan")}, "cannot be kept for nan s"),
        ({"retain_bytes": 100}, "choose 64 KiB or more"),
        ({"quorum": 0}, "a quorum of 0: choose 1 to 7"),
    ],
)
def test_a_bad_log_is_refused_in_words(changes: dict[str, object], says: str) -> None:
    assert says in problem_of(msgspec.structs.replace(ORDERS, **changes))


def test_a_good_log_is_not_refused() -> None:
    assert problem_of(ORDERS) == problem_of(ALL) == ""
