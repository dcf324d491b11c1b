"""A link: replies by position, pushes in their place, and the same whether bytes come at once or one by one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hiredis import ReplyError
from hypothesis import given
from hypothesis import strategies as st

from nearcast.core.wire.backend import LinkRefused
from nearcast.core.wire.link import Link, command, is_error


def push(*parts: bytes | int) -> bytes:
    return b">%d\r\n" % len(parts) + b"".join(
        b":%d\r\n" % part if isinstance(part, int) else b"$%d\r\n%b\r\n" % (len(part), part) for part in parts
    )


def message(channel: bytes, payload: bytes) -> bytes:
    return push(b"message", channel, payload)


class Log:
    """Everything a link hands over, in order. It is a sink of frames and of replies."""

    def __init__(self) -> None:
        self.entries: list[Any] = []

    def frames(self, payloads: list[bytes], now_s: float) -> None:
        self.entries += [("frame", payload) for payload in payloads]

    def replied(self, receivers: list[int], now_s: float) -> None:
        self.entries += [("receivers", count) for count in receivers]

    def refused(self, error: str, now_s: float) -> None:
        self.entries.append(("refused", error))

    def control(self, payload: bytes, now_s: float) -> None:
        self.entries.append(("control", payload))

    def pattern(self, channel: bytes, payload: bytes, now_s: float) -> None:
        self.entries.append(("pattern", channel, payload))

    def reply(self, reply: object, now_s: float) -> None:
        self.entries.append(("reply", str(reply) if is_error(reply) else reply))


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
def link(log: Log) -> Link:
    return wired(log)


def wired(log: Log) -> Link:
    link = Link("b1")
    link.topics[b"t"] = log
    link.control[b"nc:c:t"] = log.control
    link.patterns[b"t*"] = log.pattern
    return link


PUBLISH = command("PUBLISH", "t", "x")


# --- writing


def test_commands_are_written_once_and_in_order(link: Link, log: Log) -> None:
    assert not link.waiting
    link.send(None, "PING")
    link.subscribe(b"a", b"b")
    link.publish([PUBLISH], log)
    link.tell(b"c", b"hi")
    link.unsubscribe(b"a")
    link.psubscribe(b"p*")
    link.punsubscribe(b"p*")
    assert link.waiting
    assert link.take() == b"".join(
        [
            command("PING"),
            command("SUBSCRIBE", "a", "b"),
            PUBLISH,
            command("PUBLISH", "c", "hi"),
            command("UNSUBSCRIBE", "a"),
            command("PSUBSCRIBE", "p*"),
            command("PUNSUBSCRIBE", "p*"),
        ]
    )
    assert link.take() == b""
    assert not link.waiting


def test_a_subscription_to_nothing_is_no_command(link: Link) -> None:
    """UNSUBSCRIBE without names would end all subscriptions."""
    link.unsubscribe()
    assert not link.waiting


# --- replies by position


def test_replies_go_to_their_commands_by_position(link: Link, log: Log) -> None:
    other = Log()
    link.send(log.reply, "GET", "a")
    link.publish([PUBLISH], other)
    link.send(log.reply, "DEL", "a")
    link.send(None, "GET", "b")
    link.send(log.reply, "GET", "c")
    link.feed(b"$1\r\n1\r\n:5\r\n:6\r\n$1\r\n2\r\n_\r\n", 1.0)
    assert log.entries == [("reply", b"1"), ("reply", 6), ("reply", None)]
    assert other.entries == [("receivers", 5)]


def test_a_run_of_replies_is_split_between_its_sinks(link: Link) -> None:
    one, two = Log(), Log()
    for sink in (one, one, two, one, None, one):
        link.publish([PUBLISH], sink)
    link.feed(b":1\r\n:2\r\n:3\r\n", 1.0)
    link.feed(b":4\r\n:5\r\n:6\r\n", 1.0)
    assert one.entries == [("receivers", 1), ("receivers", 2), ("receivers", 4), ("receivers", 6)]
    assert two.entries == [("receivers", 3)]


def test_a_refused_publish_is_told_in_its_place(link: Link, log: Log) -> None:
    for _ in range(3):
        link.publish([PUBLISH], log)
    link.feed(b":1\r\n-OOM full\r\n:2\r\n", 1.0)
    assert log.entries == [("receivers", 1), ("refused", "OOM full"), ("receivers", 2)]


def test_a_refusal_nobody_needs_is_dropped(link: Link, log: Log) -> None:
    link.tell(b"c", b"x")
    link.send(log.reply, "PING")
    link.feed(b"-NOPERM no\r\n+PONG\r\n", 1.0)
    assert log.entries == [("reply", b"PONG")]


def test_an_error_is_a_reply_like_any_other(link: Link, log: Log) -> None:
    link.send(log.reply, "GET")
    link.feed(b"-ERR wrong number\r\n", 1.0)
    assert log.entries == [("reply", "ERR wrong number")]
    assert is_error(ReplyError("x"))
    assert not is_error(b"ERR")


def test_a_reply_may_ask_again(link: Link, log: Log) -> None:
    link.send(lambda reply, now_s: link.send(log.reply, "GET", "b"), "GET", "a")
    link.feed(b"$1\r\n1\r\n", 1.0)
    link.feed(b"$1\r\n2\r\n", 1.0)
    assert log.entries == [("reply", b"2")]


# --- confirmations


def test_confirmations_stand_between_replies(link: Link, log: Log) -> None:
    link.publish([PUBLISH], log)
    link.subscribe(b"a", b"b")
    link.publish([PUBLISH], log)
    link.unsubscribe(b"a")
    link.send(log.reply, "PING")
    confirmed = push(b"subscribe", b"a", 1) + push(b"subscribe", b"b", 2)
    link.feed(b":1\r\n" + confirmed + b":2\r\n" + push(b"unsubscribe", b"a", 1) + b"+PONG\r\n", 1.0)
    assert log.entries == [("receivers", 1), ("receivers", 2), ("reply", b"PONG")]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (
            b"-NOPERM no permissions\r\n",
            r"a subscription \(NOPERM no permissions\): give the user the rights in docs/security",
        ),
        (b":1\r\n", "refused a subscription"),
        (b"+OK\r\n", "refused a subscription"),
    ],
)
def test_a_refused_subscription_ends_the_link_with_a_remedy(link: Link, data: bytes, says: str) -> None:
    link.subscribe(b"a")
    with pytest.raises(LinkRefused, match=says):
        link.feed(data, 1.0)


def test_a_refused_subscription_is_told_to_who_asked_and_the_link_goes_on(link: Link, log: Log) -> None:
    told: list[str] = []
    link.subscribe(b"a", b"b", refused=lambda text, _: told.append(text))
    link.send(log.reply, "PING")
    link.feed(b"-NOPERM no permissions\r\n+PONG\r\n", 1.0)
    assert told == ["NOPERM no permissions"]
    assert log.entries == [("reply", b"PONG")]


@pytest.mark.parametrize("data", [b":1\r\n", b"+OK\r\n", b"-ERR no\r\n", push(b"subscribe", b"a", 1)])
def test_an_answer_nobody_asked_for_ends_the_link(link: Link, data: bytes) -> None:
    with pytest.raises(LinkRefused, match=r"(unexpected answer|not asked for).*proxy"):
        link.feed(data, 1.0)


def test_a_confirmation_in_the_place_of_a_reply_ends_the_link(link: Link, log: Log) -> None:
    link.send(log.reply, "PING")
    with pytest.raises(LinkRefused, match="not asked for: is there a proxy in between"):
        link.feed(push(b"subscribe", b"a", 1), 1.0)


def test_what_is_not_resp_ends_the_link(link: Link) -> None:
    with pytest.raises(LinkRefused, match="does not speak RESP"):
        link.feed(b"HTTP/1.1 400 Bad Request\r\n", 1.0)


# --- pushes


def test_messages_go_where_their_channel_belongs(link: Link, log: Log) -> None:
    link.feed(
        message(b"t", b"1")
        + message(b"nc:c:t", b"2")
        + push(b"pmessage", b"t*", b"t7", b"3")
        + message(b"unknown", b"4")
        + push(b"pmessage", b"x*", b"x", b"5")
        + push(b"invalidate", b"k"),
        1.0,
    )
    assert log.entries == [("frame", b"1"), ("control", b"2"), ("pattern", b"t7", b"3")]


def test_a_run_of_messages_is_handed_over_as_one_list(link: Link) -> None:
    runs: list[list[bytes]] = []

    class Sink:
        def frames(self, payloads: list[bytes], now_s: float) -> None:
            runs.append(payloads)

    link.topics[b"t"] = link.topics[b"u"] = Sink()
    link.feed(message(b"t", b"1") + message(b"t", b"2") + message(b"u", b"3") + message(b"t", b"4"), 1.0)
    assert runs == [[b"1", b"2"], [b"3"], [b"4"]]


def test_everything_before_a_marker_is_handed_over_before_it(link: Link, log: Log) -> None:
    for _ in range(3):
        link.publish([PUBLISH], log)
    link.feed(
        b":1\r\n" + message(b"t", b"a") + b":2\r\n" + message(b"nc:c:t", b"fence") + b":3\r\n" + message(b"t", b"b"),
        1.0,
    )
    fence = log.entries.index(("control", b"fence"))
    assert set(log.entries[:fence]) == {("receivers", 1), ("receivers", 2), ("frame", b"a")}
    assert set(log.entries[fence + 1 :]) == {("receivers", 3), ("frame", b"b")}


def test_everything_before_a_reply_is_handed_over_before_it(link: Link, log: Log) -> None:
    link.send(log.reply, "HGET", "nc:r", "t")
    link.feed(message(b"t", b"a") + b"$1\r\nr\r\n" + message(b"t", b"b"), 1.0)
    assert log.entries == [("frame", b"a"), ("reply", b"r"), ("frame", b"b")]


def test_messages_behind_a_detaching_marker_go_nowhere(link: Link, log: Log) -> None:
    link.control[b"nc:c:t"] = lambda payload, now_s: link.topics.clear()
    link.feed(message(b"t", b"1") + message(b"nc:c:t", b"leave") + message(b"t", b"2"), 1.0)
    assert log.entries == [("frame", b"1")]


def test_when_a_link_was_last_heard_is_known_after_the_bytes_are_handled(link: Link) -> None:
    heard: list[float] = []
    link.control[b"nc:c:t"] = lambda payload, now_s: heard.append(link.heard_s)
    link.feed(message(b"nc:c:t", b"1"), 5.0)
    link.feed(message(b"nc:c:t", b"2"), 9.0)
    assert heard == [0.0, 5.0]
    assert link.heard_s == 9.0


# --- bytes

STEPS = {
    "publish": (lambda link, log: link.publish([PUBLISH], log), b":3\r\n"),
    "refused": (lambda link, log: link.publish([PUBLISH], log), b"-OOM x\r\n"),
    "get": (lambda link, log: link.send(log.reply, "GET", "a"), b"$5\r\nva\r\nl\r\n"),
    "subscribe": (
        lambda link, log: link.subscribe(b"a", b"b"),
        push(b"subscribe", b"a", 1) + push(b"subscribe", b"b", 2),
    ),
    "frame": (lambda link, log: None, message(b"t", b"\r\n$:payload")),
    "control": (lambda link, log: None, message(b"nc:c:t", b"record")),
    "pattern": (lambda link, log: None, push(b"pmessage", b"t*", b"t1", b"p")),
    "other": (lambda link, log: None, message(b"elsewhere", b"p")),
}


def heard(steps: list[str], cuts: list[int]) -> list[Any]:
    log = Log()
    link = wired(log)
    data = b""
    for step in steps:
        ask, answer = STEPS[step]
        ask(link, log)
        data += answer
    edges = sorted({0, *(cut % (len(data) + 1) for cut in cuts), len(data)})
    for start, end in pairwise(edges):
        link.feed(data[start:end], 1.0)
    return log.entries


def by_kind(entries: list[Any]) -> dict[str, list[Any]]:
    kinds: dict[str, list[Any]] = {}
    for entry in entries:
        kinds.setdefault("frame" if entry[0] == "frame" else "other", []).append(entry)
    return kinds


@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=12), st.lists(st.integers(0, 2000), max_size=8))
def test_bytes_in_pieces_give_the_same_as_at_once(steps: list[str], cuts: list[int]) -> None:
    """Within a run, frames may overtake replies to PUBLISH; each of the two keeps its order, and markers keep both."""
    whole = heard(steps, [])
    assert by_kind(heard(steps, cuts)) == by_kind(whole)
    assert by_kind(heard(steps, list(range(2000)))) == by_kind(whole)
    assert len(whole) == sum(step not in ("subscribe", "other") for step in steps)


@given(st.lists(st.sampled_from(sorted(STEPS)), max_size=12), st.integers(0, 2000))
def test_markers_cut_the_stream_at_the_same_point_however_bytes_come(steps: list[str], cut: int) -> None:
    expected = [step for step in steps if step in ("frame", "control")]
    told = [entry[0] for entry in heard(steps, [cut]) if entry[0] in ("frame", "control")]
    assert told == expected
