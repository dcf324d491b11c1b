"""What a call waits for, and the news a client tells: states, connections, moves, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from nearcast.core.client.mailbox import Mailbox, Overflow
from nearcast.core.client.news import Kind, Note, State, StateChange, for_acknowledgements, for_attachment
from nearcast.core.model.placement import Mode, Placement, Record
from nearcast.core.model.settings import DEFAULT_TIMING

T = b"t"
UNLEASED_S = DEFAULT_TIMING.lease_s + DEFAULT_TIMING.heartbeat_s + 0.1


def why_not_acknowledged(world: Any, client: Any) -> str:
    return for_acknowledgements(list(client.machine.in_flight), world.now_s)


def why_not_attached(world: Any, client: Any) -> str:
    return for_attachment(client.machine, [T], world.now_s)


def record(epoch: int, broker: str, upcoming: str | None = None) -> Record:
    next_ = Placement(epoch + 1, Mode.SINGLE, (upcoming,), 1) if upcoming else None
    return Record(version=4 * epoch, term=1, placement=Placement(epoch, Mode.SINGLE, (broker,), 1), next=next_)


# --- what it waits for


def test_without_any_server_it_says_so(rig: Any) -> None:
    world = rig("b1")
    world.down.add("b1")
    client = world.client()
    client.publish(T, b"1")
    client.subscribe(T)
    said = "'t': no server of the cluster is connected (redis://b1: refused)"
    assert why_not_acknowledged(world, client) == said
    assert why_not_attached(world, client) == said


def test_a_directory_that_does_not_answer_is_named(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    world.silent.add("b1")
    client.publish(T, b"1")
    assert (
        why_not_acknowledged(world, client)
        == "'t': the client does not know yet where the topic is: b1 has not answered"
    )
    assert why_not_attached(world, client) == "the program was too busy to read the answer"


def test_a_broker_that_is_not_connected_is_named_with_its_error(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"1")
    world.down.add("b1")
    client.cut("b1")
    client.publish(T, b"2")
    assert why_not_acknowledged(world, client) == "'t': b1 is not connected (redis://b1: cut)"


def test_a_broker_without_a_lease_is_named(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"1")
    world.unleased.add("b1")
    world.run(UNLEASED_S)
    client.publish(T, b"2")
    client.subscribe(T)
    said = "'t': b1 has no lease: check its agent and the controllers"
    assert why_not_acknowledged(world, client) == said
    assert why_not_attached(world, client) == said


def test_a_server_that_does_not_acknowledge_is_named(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(T, b"1")
    world.silent.add("b1")
    client.publish(T, b"2")
    assert why_not_acknowledged(world, client) == "'t': b1 has not acknowledged it"


def test_a_topic_on_its_way_is_said_to_be_moved(rig: Any) -> None:
    world = rig("b1", "b2")
    for broker in ("b1", "b2"):
        world.install(broker, b"other", record(5, "b2"))
        world.install(broker, T, record(5, "b1", upcoming="b2"))
    client = world.client()
    client.subscribe(b"other")
    world.silent.add("b2")
    client.subscribe(T)
    assert why_not_attached(world, client) == "'t': the topic is being moved to b2"


def test_many_topics_are_counted(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    world.silent.add("b1")
    client.publish(T, b"1")
    client.publish(b"u", b"2")
    client.publish(b"v", b"3")
    assert why_not_acknowledged(world, client).endswith("; 2 more topics wait")


def test_a_pattern_names_the_broker_it_waits_for(rig: Any) -> None:
    world = rig("b1", "b2")
    client = world.client()
    world.down.add("b2")
    mailbox = Mailbox(10, 1000, Overflow.DROP_OLDEST, accept_foreign=False)
    client.machine.psubscribe(T, mailbox, None, world.now_s)
    world.settle()
    assert why_not_attached(world, client) == "'t': b2 is not connected (redis://b2: refused)"


# --- news


@pytest.fixture
def news() -> list[Note | StateChange]:
    return []


def states(news: list[Note | StateChange]) -> list[State]:
    return [told.state for told in news if isinstance(told, StateChange)]


def kinds(news: list[Note | StateChange]) -> list[Kind]:
    return [told.kind for told in news if isinstance(told, Note)]


def test_a_client_tells_what_it_has_become(rig: Any, news: list[Note | StateChange]) -> None:
    world = rig("b1")
    client = world.client(tell=news.append)
    client.publish(T, b"1")
    world.down.add("b1")
    client.cut("b1")
    world.run(1.0)
    world.down.clear()
    world.run(3.0)
    client.machine.close(world.now_s)
    assert states(news) == [State.CONNECTED, State.DISCONNECTED, State.CONNECTED, State.CLOSED]
    assert StateChange(State.DISCONNECTED, "redis://b1: cut") in news


def test_one_broker_of_two_away_is_degraded(rig: Any, news: list[Note | StateChange]) -> None:
    world = rig("b1", "b2")
    for broker in ("b1", "b2"):
        world.install(broker, T, record(5, "b2"))
    client = world.client(tell=news.append)
    client.subscribe(T)
    world.down.add("b2")
    client.cut("b2")
    assert client.machine.state == StateChange(State.DEGRADED, "b2 is not connected (redis://b2: cut)")
    world.down.clear()
    world.run(3.0)
    assert states(news) == [State.CONNECTED, State.DEGRADED, State.CONNECTED]


def test_a_lease_that_ends_is_degraded(rig: Any, news: list[Note | StateChange]) -> None:
    world = rig("b1")
    client = world.client(tell=news.append)
    client.subscribe(T)
    world.unleased.add("b1")
    world.run(UNLEASED_S)
    reason = "b1 has no lease: check its agent and the controllers"
    assert client.machine.state == StateChange(State.DEGRADED, reason)


def test_connections_and_attempts_are_noted(rig: Any, news: list[Note | StateChange]) -> None:
    world = rig("b1")
    client = world.client(tell=news.append)
    client.subscribe(T)
    world.down.add("b1")
    client.cut("b1")
    world.run(0.5)
    assert kinds(news)[:3] == [Kind.OPENED, Kind.LOST, Kind.RETRIED]
    assert Note(Kind.OPENED, "connected to b1 (redis://b1)") in news


def test_moves_are_noted(rig: Any, news: list[Note | StateChange]) -> None:
    world = rig("b1", "b2")
    client = world.client(tell=news.append)
    world.install("b1", T, record(5, "b1"))
    world.install("b2", T, record(5, "b1"))
    client.publish(T, b"1")
    client.subscribe(T)
    for broker in ("b1", "b2"):
        world.install(broker, T, record(6, "b2"))
    world.run(1.0)
    moved = [told.text for told in news if isinstance(told, Note) and told.kind in (Kind.MOVED, Kind.INTERRUPTED)]
    assert moved == [
        "publications on 't' moved to b2 (single, epoch 6)",
        "a subscription to 't' moved to b2 (single, epoch 6): the topic moved before this subscription was attached "
        "to its new brokers",
    ]


def test_nothing_is_told_per_message(rig: Any, news: list[Note | StateChange]) -> None:
    world = rig("b1")
    client = world.client(tell=news.append)
    client.subscribe(T)
    client.publish(T, b"1")
    news.clear()
    client.publish(T, *(b"%d" % number for number in range(100)))
    assert news == []
