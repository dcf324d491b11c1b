"""Steps: batches on their way to a server that publishes and keeps them, and what has become of each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec

from nearcast.core.model.logs import parse_number
from nearcast.core.wire.backend import Denied, OnKept

STEPS_MAX = 50  # in one call: a tenth of a millisecond of the server's time
CALL_BYTES = 256 << 10


class Step(NamedTuple):
    """A batch of one topic, to be published and kept."""

    topic: bytes
    epoch: int
    settled: int  # all numbers before this one are acknowledged, kept or given up
    first: int
    last: int
    batch: bytes


class Kept(msgspec.Struct, frozen=True):
    """Published, and in all streams."""

    receivers: int


class OtherEpoch(msgspec.Struct, frozen=True):
    """Not done: the topic is in another epoch there."""

    epoch: int  # -1: the server does not know the topic


class OtherNumber(msgspec.Struct, frozen=True):
    """Not done: it does not follow the last number kept there."""

    last: int


class OtherLogs(msgspec.Struct, frozen=True):
    """Not done: the server knows another version of the logs."""

    version: int


Outcome = Kept | OtherEpoch | OtherNumber | OtherLogs | Denied


def calls_of(steps: list[tuple[Step, OnKept]]) -> Iterator[list[tuple[Step, OnKept]]]:
    """In order, each of a bounded size and with a topic once: what a call finds of a topic is what it began with."""
    call: list[tuple[Step, OnKept]] = []
    topics: set[bytes] = set()
    size = 0
    for step, then in steps:
        if call and (len(call) >= STEPS_MAX or size + len(step.batch) > CALL_BYTES or step.topic in topics):
            yield call
            call, topics, size = [], set(), 0
        call.append((step, then))
        topics.add(step.topic)
        size += len(step.batch)
    yield call


def were_kept(call: list[tuple[Step, OnKept]], reply: object, now_s: float) -> None:
    outcomes: Iterable[Outcome]
    if isinstance(reply, list):
        outcomes = map(_outcome, reply)
    elif isinstance(reply, bytes):
        outcomes = [OtherLogs(int(reply or b"-1"))] * len(call)
    else:
        outcomes = [Denied(str(reply))] * len(call)
    for (_, then), outcome in zip(call, outcomes, strict=True):
        then(outcome, now_s)


def _outcome(answer: int | bytes) -> Outcome:
    if isinstance(answer, int):
        return Kept(answer)
    kind, rest = answer[:1], answer[1:]
    number = parse_number(rest)  # any client may have written it: first uses, and last numbers
    if kind == b"e":
        return OtherEpoch(number if number is not None else -1)
    if kind == b"n" and number is not None:
        return OtherNumber(number)
    return Denied(rest[:200].decode(errors="replace"))
