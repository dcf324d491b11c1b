"""Counting subscribers on a server that answers addresses instead of numbers while a table is being resized."""

from __future__ import annotations

from nearcast.core.wire.link import Link, command
from nearcast.core.wire.valkey import FIRST_NUDGES, NUDGES_MAX, SUBSCRIBERS_MAX, Headcount

ADDRESS = 239_742_542  # as Valkey 9.1.2 answered for 15 subscribers


def numsub(**numbers: int) -> bytes:
    pairs = b"".join(b"$%d\r\n%b\r\n:%d\r\n" % (len(name), name.encode(), n) for name, n in numbers.items())
    return b"*%d\r\n" % (2 * len(numbers)) + pairs


def confirmations(channel: bytes, nudges: int) -> bytes:
    parts = (b">3\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n:1\r\n" % (len(v), v, len(channel), channel) for v in VERBS)
    return b"".join(parts) * nudges


VERBS = (b"subscribe", b"unsubscribe")
ASKED = command("PUBSUB", "NUMSUB", b"t", b"y")


def asked_of(link: Link) -> list[list[int]]:
    counted: list[list[int]] = []
    Headcount(link, [b"t", b"y"], counted.append).take()
    assert link.take() == ASKED
    return counted


def test_sane_numbers_are_taken_as_they_are() -> None:
    link = Link("b1")
    counted = asked_of(link)
    link.feed(numsub(t=SUBSCRIBERS_MAX, y=0), 0.0)
    assert counted == [[SUBSCRIBERS_MAX, 0]]
    assert not link.waiting


def test_a_table_that_is_being_resized_is_nudged_and_all_is_counted_again() -> None:
    link = Link("b1")
    counted = asked_of(link)
    link.feed(numsub(t=15, y=ADDRESS), 0.0)
    assert link.take() == (command("SUBSCRIBE", b"y") + command("UNSUBSCRIBE", b"y")) * FIRST_NUDGES + ASKED
    assert counted == []
    link.feed(confirmations(b"y", FIRST_NUDGES) + numsub(t=15, y=15), 0.0)
    assert counted == [[15, 15]]
    assert not link.waiting


def test_the_nudges_double_and_end() -> None:
    link = Link("b1")
    counted = asked_of(link)
    nudges = FIRST_NUDGES
    answer = numsub(t=ADDRESS, y=1)
    while nudges <= NUDGES_MAX:
        link.feed(answer, 0.0)
        assert link.take().count(b"$9\r\nSUBSCRIBE\r\n") == nudges
        answer = confirmations(b"t", nudges) + numsub(t=ADDRESS, y=1)
        nudges *= 2
    link.feed(answer, 0.0)
    assert not link.waiting, "the controller asks again anyway"
    assert counted == []


def test_messages_that_come_in_between_and_errors_are_nothing() -> None:
    link = Link("b1")
    counted = asked_of(link)
    link.feed(numsub(t=ADDRESS, y=1), 0.0)
    link.take()
    message = b">3\r\n$7\r\nmessage\r\n$1\r\nt\r\n$5\r\nhello\r\n"
    link.feed(message + confirmations(b"t", FIRST_NUDGES) + message + b"-ERR no such thing\r\n", 0.0)
    assert counted == []
    assert not link.waiting
