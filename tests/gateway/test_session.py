"""A session: login first, limits, and an outbox with a policy for each kind of frame."""

from __future__ import annotations

from typing import Any

import msgspec

from nearcast.core.model.tokens import Token
from nearcast.core.wire.gateway import (
    Ack,
    Done,
    Login,
    Logout,
    Ping,
    Result,
    Subscribe,
    ToGateway,
    TopicMessage,
    Welcome,
    encode,
)
from nearcast.gateway.session import Delivery, DeliveryState, Session
from nearcast.gateway.settings import GatewaySettings

TOKEN = Token(1 << 32, 1, "a1", "")


def send(session: Session, frame: ToGateway) -> object:
    return session.receive(encode(frame))


def taken(session: Session) -> list[dict[str, Any]]:
    frames = []
    while (frame := session.take()) is not None:
        frames.append(msgspec.json.decode(frame))
    return frames


def types(session: Session) -> list[str]:
    return [frame["type"] for frame in taken(session)]


def new_session(**settings: Any) -> Session:
    return Session(GatewaySettings(**settings), "192.0.2.1", lambda: None)


def open_session(**settings: Any) -> Session:
    session = new_session(**settings)
    assert send(session, Login("ann", "token")) == Login("ann", "token")
    session.welcomed("ann", TOKEN, Welcome("b1", []))
    assert types(session) == ["welcome"]
    return session


def a_delivery(session: Session) -> Delivery:
    delivery = session.deliveries["s-1"] = Delivery("s-1", "s", 1, 0)
    delivery.list_after()
    delivery.listed([], 0, 1, 1000)
    return delivery


def result(execution: int, text: str = "") -> bytes:
    return encode(Result("s-1", "s", execution, [{"text": text}]))


def test_the_first_frame_must_be_a_login() -> None:
    session = new_session()
    assert send(session, Subscribe(7, "near_me")) is None
    refused, bye = taken(session)
    assert (refused["type"], refused["ref"], refused["problem"]) == ("refused", 7, "log in first")
    assert bye == {"type": "bye", "reason": "the first frame must be a login"}
    assert send(session, Login("ann", "t")) is None
    assert taken(session) == []


def test_a_refused_login_ends_the_session() -> None:
    session = new_session()
    send(session, Login("ann", "bad"))
    assert send(session, Ping()) is None
    session.refuse_login("not a token", final=True)
    assert types(session) == ["refused", "refused", "bye"]


def test_a_second_login_and_rubbish_are_refused_and_the_session_goes_on() -> None:
    session = open_session()
    assert send(session, Login("eve", "t")) is None
    assert session.receive("{") is None
    assert send(session, Ping()) is None
    assert types(session) == ["refused", "refused", "pong"]
    assert session.user == "ann"
    assert send(session, Logout()) == Logout()


def test_operations_not_answered_yet_are_bounded() -> None:
    session = open_session(operations=2)
    asked = [send(session, Subscribe(ref, "near_me")) for ref in (1, 2, 3)]
    assert asked == [Subscribe(1, "near_me"), Subscribe(2, "near_me"), None]
    (refused,) = taken(session)
    assert (refused["ref"], refused["type"]) == (3, "refused")
    session.answer(Done(1))
    assert send(session, Subscribe(4, "near_me")) == Subscribe(4, "near_me")


def test_acknowledged_cursors_grow_and_cannot_run_ahead() -> None:
    session = open_session()
    delivery = a_delivery(session)
    for execution in (1, 2, 3):
        assert session.deliver(delivery, execution, result(execution))
    taken(session)
    for execution in (2, 1):
        send(session, Ack("s-1", execution))
    send(session, Ack("gone-1", 5))
    assert types(session) == []
    assert session.take_acknowledged() == {"s-1": 2}
    session.put_back_acknowledged({"s-1": 2})
    send(session, Ack("s-1", 3))
    assert session.take_acknowledged() == {"s-1": 3}
    assert session.take_acknowledged() == {}


def test_what_came_from_the_gateway_before_is_acknowledged_and_not_sent_again() -> None:
    session = open_session()
    delivery = a_delivery(session)
    assert session.deliver(delivery, 1, result(1))
    send(session, Ack("s-1", 3))
    assert session.take_acknowledged() == {"s-1": 3}
    assert delivery.position == 3


def test_results_beyond_the_outbox_wait_in_storage_and_follow_when_half_of_it_is_free() -> None:
    session = open_session(outbox_frames=4)
    delivery = a_delivery(session)
    woken: list[bool] = []
    session.has_work = lambda: woken.append(True)
    assert [session.deliver(delivery, execution, result(execution)) for execution in range(1, 7)] == [
        True,
        True,
        True,
        True,
        False,
        False,
    ]
    assert (delivery.state, delivery.position) == (DeliveryState.LAGGING, 4)
    session.take()
    assert delivery.state is DeliveryState.LAGGING
    session.take()
    assert woken == [True]
    assert delivery.list_after() == 4
    assert types(session) == ["result", "result", "lagging"]


def test_the_outbox_is_bounded_in_bytes_too_but_takes_one_large_result() -> None:
    session = open_session(outbox_bytes=1000)
    delivery = a_delivery(session)
    assert session.deliver(delivery, 1, result(1, "x" * 5000))
    assert not session.deliver(delivery, 2, result(2))
    session.take()
    assert session.deliver(delivery, 2, result(2))


def test_of_topic_messages_the_oldest_go_and_a_gap_tells_how_many() -> None:
    session = open_session(message_frames=2)
    for sequence in (1, 2, 3, 4, 5):
        frame = encode(TopicMessage("t", "x", "a", sequence, 0.0))
        session.send_message("t", frame)
    gap, *messages = taken(session)
    assert gap == {"type": "gap", "topic": "t", "count": 3, "reason": "the subscriber is too slow"}
    assert [message["sequence"] for message in messages] == [4, 5]
    assert session.outbox.dropped == 3


def test_the_bye_comes_after_everything_that_waits() -> None:
    session = open_session()
    session.send_message("t", encode(TopicMessage("t", "x", "a", 1, 0.0)))
    session.deliver(a_delivery(session), 1, result(1))
    session.end("logged out")
    session.send_message("t", encode(TopicMessage("t", "x", "a", 2, 0.0)))
    assert types(session) == ["result", "message", "bye"]


def test_a_subscriber_that_asks_and_never_reads_is_not_read_from_any_more() -> None:
    session = open_session(outbox_frames=3, operations=2)
    for _ in range(5):
        assert not session.is_choked
        send(session, Ping())
    send(session, Ping())
    assert session.is_choked
    session.take()
    assert not session.is_choked
