"""Publishing to logs with a quorum: nothing counts before enough replicas have it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nearcast.core.client import quorum
from nearcast.core.client.log_reader import Start
from nearcast.core.client.news import for_acknowledgements
from nearcast.core.client.part_reader import REPEATED_MAX
from nearcast.core.model.logs import Log, life_of, stream_of
from nearcast.core.model.names import CLAIM_KEY
from nearcast.core.model.placement import Placement, settled, single, switch
from nearcast.core.wire.replication import admission_text

T, U = b"t", b"u"
LOG = Log("all", 1, ("*",), 3600.0, 1 << 30, quorum=2)


class Replica:
    """A replica that a test lets catch up."""

    def __init__(self, world: Any, broker: str) -> None:
        self.server = world.servers[broker]
        self.world = world
        self.offset = 0
        self.server.keys.follow_changes()
        self.server.replication.attach(self)

    def changed(self, offset: int, changes: Any) -> None:
        self.offset = offset

    def catch_up(self) -> None:
        self.server.replication.acknowledge(self, self.offset)
        self.world.settle()

    def follow(self) -> None:
        """Have everything at once from now on."""
        self.changed = lambda offset, changes: self.server.replication.acknowledge(self, offset)  # type: ignore[method-assign]
        self.catch_up()


def admitted(world: Any, broker: str) -> None:
    """What an agent writes when it has seen to it that only replicas of its own are attached."""
    text = admission_text(world.servers[broker].run_id, world.membership.life(broker))
    world.ask(broker, "HSET", CLAIM_KEY, "replicas", text)


def covered(world: Any, *logs: Log, replicas: bool = True) -> None:
    version = world.membership.version + 1
    world.membership = msgspec.structs.replace(world.membership, version=version, logs=logs, logs_version=version)
    for broker in world.servers:
        world.prepare(broker)
        if replicas:
            admitted(world, broker)


def kept(world: Any, broker: str) -> int:
    info = world.membership.brokers[broker]
    stream = world.servers[broker].keys.stream(stream_of(LOG, life_of(broker, info.began)))
    return len(stream.records) if stream is not None else 0


def why(client: Any, topic: bytes = T) -> str:
    return for_acknowledgements([client.machine.topic_publishers[topic]], client.rig.now_s)


def test_a_message_counts_when_a_replica_has_it(rig: Any) -> None:
    world = rig("b1")
    covered(world, LOG)
    replica = Replica(world, "b1")
    client = world.client()
    client.publish(T, b"a")
    assert client.acked == []
    replica.catch_up()  # now it has entered: what the broker says it has kept is at the replica
    assert kept(world, "b1") == 1
    assert client.acked == []
    replica.catch_up()
    assert client.acked == [b"a"]


def test_everything_in_front_of_a_wait_counts_with_it_and_what_comes_later_waits_for_the_next(rig: Any) -> None:
    world = rig("b1")
    covered(world, LOG)
    replica = Replica(world, "b1")
    client = world.client()
    client.publish(T, b"a")
    client.publish(U, b"b")
    for _ in range(4):  # two topics are entered and two messages kept, one behind the other
        replica.catch_up()
    assert client.acked == [b"a", b"b"]
    client.publish(T, b"c")
    client.publish(U, b"d")  # behind the WAIT for c: it has not run
    assert kept(world, "b1") == 3
    replica.catch_up()
    assert client.acked == [b"a", b"b", b"c"]
    replica.catch_up()
    assert client.acked == [b"a", b"b", b"c", b"d"]


def test_with_too_few_replicas_nothing_counts_and_the_reason_says_how_many(rig: Any) -> None:
    world = rig("b1")
    covered(world, msgspec.structs.replace(LOG, quorum=3))
    Replica(world, "b1").follow()
    client = world.client()
    client.publish(T, b"a")
    world.run(1.0)
    assert client.acked == []
    assert "b1: 1 of the 2 replicas that must have it are in step" in why(client)
    Replica(world, "b1").follow()
    world.run(0.5)
    assert client.acked == [b"a"]


def test_without_an_admission_nothing_is_sent(rig: Any) -> None:
    world = rig("b1")
    covered(world, LOG, replicas=False)
    Replica(world, "b1").follow()  # a stray one: nobody has seen to it that there are none
    client = world.client()
    client.publish(T, b"a")
    world.run(1.0)
    assert client.acked == []
    assert kept(world, "b1") == 0
    assert "b1: it has no replicas: start its agent with --replica" in why(client)
    world.ask("b1", "HSET", CLAIM_KEY, "replicas", "another run of b1@0")
    world.run(1.0)
    assert client.acked == []
    admitted(world, "b1")
    world.run(0.5)
    assert client.acked == [b"a"]


def test_logs_of_different_quorums_do_not_wait_for_each_other(rig: Any) -> None:
    world = rig("b1")
    covered(world, msgspec.structs.replace(LOG, topics=("t",)), Log("more", 1, ("u",), 3600.0, 1 << 30, quorum=3))
    Replica(world, "b1").follow()
    client = world.client()
    client.publish(U, b"needs two")
    client.publish(T, b"needs one")
    world.run(1.0)
    assert client.acked == [b"needs one"]


def test_topics_of_logs_without_a_quorum_use_the_first_connection_alone(rig: Any) -> None:
    world = rig("b1")
    covered(world, msgspec.structs.replace(LOG, quorum=1))
    client = world.client()
    client.publish(T, b"a")
    assert client.acked == [b"a"]
    assert list(client.sessions) == ["b1"]


def test_a_lost_quorum_link_is_opened_again_and_nothing_is_kept_twice(rig: Any) -> None:
    world = rig("b1")
    covered(world, LOG)
    replica = Replica(world, "b1")
    client = world.client()
    subscriber = client.subscribe(U)
    client.publish(T, b"a")
    replica.catch_up()
    assert kept(world, "b1") == 1
    client.cut("b1 quorum")
    replica.follow()
    world.run(1.0)
    assert client.acked == [b"a"]
    assert kept(world, "b1") == 1
    assert subscriber.take() == [], "the first link lives on"


def test_a_lost_first_link_ends_the_quorum_link(rig: Any) -> None:
    world = rig("b1")
    covered(world, LOG)
    Replica(world, "b1").follow()
    client = world.client()
    client.publish(T, b"a")
    assert set(client.sessions) == {"b1", "b1 quorum"}
    client.cut("b1")
    assert "b1 quorum" not in client.sessions
    client.publish(T, b"b")
    world.run(1.0)
    assert client.acked == [b"a", b"b"]
    assert kept(world, "b1") == 2


def test_a_restarted_server_is_not_taken_for_the_first_links(rig: Any) -> None:
    world = rig("b1")
    covered(world, LOG)
    Replica(world, "b1").follow()
    client = world.client()
    client.publish(T, b"a")
    world.servers["b1"].run_id = "another"
    client.cut("b1 quorum")
    client.publish(T, b"b")
    world.run(1.0)
    assert client.acked == [b"a"]


def test_nothing_is_kept_at_a_new_broker_before_the_old_ones_replicas_have_it(rig: Any) -> None:
    world = rig("b1", "b2")
    covered(world, LOG)
    old, new = Replica(world, "b1"), Replica(world, "b2")
    new.follow()
    before, after = Placement(5, "single", ("b1",), world.membership.version), single(6, "b2", world.membership.version)
    for broker in world.servers:
        world.install(broker, T, settled(before, term=1))
    client = world.client()
    client.publish(T, b"a")
    old.catch_up()
    assert kept(world, "b1") == 1
    world.install("b1", T, switch(before, after, 1, forced=False))
    for broker in world.servers:
        world.install(broker, T, settled(after, term=1))
    client.publish(T, b"b")
    world.run(0.5)
    assert client.acked == []
    assert kept(world, "b2") == 0
    old.follow()
    world.run(0.5)
    assert client.acked == [b"a", b"b"]
    assert (kept(world, "b1"), kept(world, "b2")) == (1, 1)


def test_a_user_who_may_not_wait_is_told_so(rig: Any) -> None:
    world = rig("b1")
    covered(world, LOG)
    Replica(world, "b1")
    client = world.client()
    client.publish(T, b"a")
    client.machine.received("b1 quorum", b"-NOPERM User app has no permissions to run WAIT\r\n", world.now_s)
    assert "has no permissions to run WAIT" in why(client)


def test_when_too_much_waits_for_replicas_the_connection_is_opened_again(
    rig: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = rig("b1")
    covered(world, LOG)
    replica = Replica(world, "b1")
    client = world.client()
    client.publish(T, b"0")
    replica.catch_up()
    replica.catch_up()
    monkeypatch.setattr(quorum, "QUESTIONS_MAX", 5)
    connection = client.sessions["b1 quorum"]
    for number in range(1, 8):
        client.publish(T, b"%d" % number)
    world.run(0.2)
    assert client.sessions.get("b1 quorum") is not connection
    assert client.acked == [b"0"]
    replica.follow()
    world.run(1.0)
    assert client.acked == [b"%d" % number for number in range(8)]


def test_beats_of_a_reader_do_not_pile_up_while_replicas_are_missing(rig: Any) -> None:
    world = rig("b1")
    info = world.membership.brokers["b1"]
    brokers = {"b1": msgspec.structs.replace(info, replicas={"redis://r": "run"})}
    world.membership = msgspec.structs.replace(world.membership, brokers=brokers)
    covered(world, LOG)
    Replica(world, "b1")
    client = world.client()
    client.machine.readers.read("all", Start.EARLIEST, group="g", token="begun", now_s=world.now_s)
    world.run(120.0)
    (part,) = next(iter(client.machine.readers._open)).parts.values()
    link = client.machine.links.up("b1")
    assert client.machine.side_links.quorum(link).asked_by(part) == REPEATED_MAX
