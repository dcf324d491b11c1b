"""An agent ends the records that nobody uses, and no others."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from nearcast.core.agent import Agent, Identity
from nearcast.core.membership import ring_of
from nearcast.core.names import RECORDS
from nearcast.core.placement import single
from nearcast.core.record import first_use, settled
from nearcast.core.resp import command
from nearcast.core.settings import Timing
from nearcast.core.wire import decode_record, encode_record

TIMING = Timing(idle_s=3.0)
LOOKED_S = TIMING.idle_s + 1.0
ENDED_S = 3 * TIMING.idle_s + 1.0  # clients let go of a topic first


class Place:
    """Brokers with their agents, and records of first uses on them."""

    def __init__(self, rig: Any, *brokers: str) -> None:
        self.world = rig(*brokers)
        for broker in brokers:
            agent = Agent(Identity(broker, f"redis://{broker}"), f"redis://{broker}", Random(broker), timing=TIMING)
            self.world.wire(agent)
        self.world.run(1.0)
        for broker in brokers:
            self.world.prepare(broker)  # no controller is there to grant the lease

    def records(self, broker: str = "b1") -> set[bytes]:
        return set(self.world.servers[broker].keys.fields(RECORDS))

    def put(self, broker: str, topic: bytes, record: Any) -> None:
        self.world.servers[broker].keys.set_fields(RECORDS, {topic: encode_record(record)})

    def publish_members(self, **changes: Any) -> None:
        version = self.world.membership.version + 1
        self.world.membership = msgspec.structs.replace(self.world.membership, version=version, **changes)
        for broker in self.world.servers:
            self.world.prepare(broker)


@pytest.fixture
def place(rig: Any) -> Place:
    return Place(rig, "b1")


def test_a_record_that_nobody_uses_ends(place: Place) -> None:
    client = place.world.client(timing=TIMING)
    client.publish(b"t", b"a")
    assert place.records() == {b"t"}
    place.world.run(ENDED_S)
    assert place.records() == set()


def test_a_topic_that_ended_is_made_again_as_it_was(place: Place) -> None:
    reader, client = place.world.client(2, timing=TIMING), place.world.client(timing=TIMING)
    client.publish(b"t", b"a")
    before = decode_record(place.world.servers["b1"].keys.fields(RECORDS)[b"t"])
    place.world.run(ENDED_S)
    mailbox = reader.subscribe(b"t")
    client.publish(b"t", b"b")
    assert decode_record(place.world.servers["b1"].keys.fields(RECORDS)[b"t"]) == before
    assert [event.payload for event in mailbox.take()] == [b"b"]


@pytest.mark.parametrize("use", ["subscriber", "publisher", "somebody else"])
def test_a_record_that_somebody_uses_stays(place: Place, use: str) -> None:
    client = place.world.client(timing=Timing(idle_s=1000.0))
    if use == "subscriber":
        client.subscribe(b"t")
    elif use == "publisher":
        client.publish(b"t", b"a")
    else:
        place.put("b1", b"t", first_use(1, "b1"))
        session = place.world.servers["b1"].connect(lambda data: None)
        session.feed(command("HELLO", 3) + command("SUBSCRIBE", "t"))
    place.world.run(LOOKED_S)
    assert place.records() == {b"t"}


def test_what_the_controller_knows_of_stays(place: Place) -> None:
    place.put("b1", b"placed", settled(single(7, "b1", 1), term=2))
    place.put("b1", b"kept", msgspec.structs.replace(first_use(1, "b1"), term=2))
    place.put("b1", b"first use", first_use(1, "b1"))
    place.world.run(LOOKED_S)
    assert place.records() == {b"placed", b"kept"}


def test_nothing_ends_while_the_ring_changes(place: Place) -> None:
    place.put("b1", b"t", first_use(1, "b1"))
    place.publish_members(previous_ring=("b2",))
    place.world.run(LOOKED_S)
    assert place.records() == {b"t"}
    place.publish_members(previous_ring=None)
    place.world.run(LOOKED_S)
    assert place.records() == set()


def test_only_the_directory_ends_a_topic(rig: Any) -> None:
    place = Place(rig, "b1", "b2")
    topics = [b"t%d" % number for number in range(30)]
    for broker in ("b1", "b2"):
        for topic in topics:
            place.put(broker, topic, first_use(1, broker))
    place.world.run(LOOKED_S)
    ring = ring_of(("b1", "b2"))
    assert place.records("b1") == {topic for topic in topics if ring.owner(topic) == "b2"}
    assert place.records("b2") == {topic for topic in topics if ring.owner(topic) == "b1"}


def test_a_record_of_a_newer_version_stays(place: Place) -> None:
    newer = encode_record(first_use(1, "b1")).replace(b'"single"', b'"unheard of"')
    place.world.servers["b1"].keys.set_fields(RECORDS, {b"t": newer})
    place.world.run(LOOKED_S)
    assert place.records() == {b"t"}


def test_a_round_goes_on_after_a_lost_connection(place: Place) -> None:
    place.put("b1", b"t", first_use(1, "b1"))
    place.world.silent.add("b1")
    place.world.run(LOOKED_S)
    (agent,) = place.world.wired
    agent.cut("server")
    place.world.speak("b1")
    place.world.run(LOOKED_S + 3.0)
    assert place.records() == set()


def test_a_client_that_was_told_of_a_record_before_it_ended_asks_again(place: Place) -> None:
    """It knows where the topic is, and comes when the record is gone: between its two steps an agent took one."""
    client = place.world.client(timing=TIMING)
    place.world.silent.add("b1")
    client.publish(b"t", b"a")
    place.world.servers["b1"].keys.delete_fields(RECORDS, [b"t"])
    place.world.speak("b1")
    place.world.run(1.0)
    assert client.acked == [b"a"]
    assert place.records() == {b"t"}
