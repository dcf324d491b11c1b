"""An agent ends the first uses of topics that nobody uses, and nothing else."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from nearcast.core.agent.machine import Agent, Identity
from nearcast.core.model.names import FIRST_USES, RECORDS
from nearcast.core.model.placement import settled, single
from nearcast.core.model.settings import Timing
from nearcast.core.wire.frames import encode_record
from nearcast.core.wire.link import command

TIMING = Timing(idle_s=3.0)
LOOKED_S = TIMING.idle_s + 1.0
ENDED_S = 3 * TIMING.idle_s + 1.0  # clients let go of a topic first


class Place:
    """Brokers with their agents, and first uses on them."""

    def __init__(self, rig: Any, *brokers: str) -> None:
        self.world = rig(*brokers)
        for broker in brokers:
            agent = Agent(Identity(broker, f"redis://{broker}"), f"redis://{broker}", Random(broker), timing=TIMING)
            self.world.wire(agent)
        self.world.run(1.0)
        for broker in brokers:
            self.world.prepare(broker)  # no controller is there to grant the lease

    def used(self, broker: str = "b1") -> dict[bytes, bytes]:
        return dict(self.world.servers[broker].keys.fields(FIRST_USES))

    def put(self, broker: str, topic: bytes, version: bytes = b"1") -> None:
        self.world.servers[broker].keys.set_fields(FIRST_USES, {topic: version})

    def publish_members(self, **changes: Any) -> None:
        version = self.world.membership.version + 1
        self.world.membership = msgspec.structs.replace(self.world.membership, version=version, **changes)
        for broker in self.world.servers:
            self.world.prepare(broker)


@pytest.fixture
def place(rig: Any) -> Place:
    return Place(rig, "b1")


def test_a_first_use_that_nobody_holds_ends(place: Place) -> None:
    client = place.world.client(timing=TIMING)
    client.publish(b"t", b"a")
    assert place.used() == {b"t": b"1"}
    place.world.run(ENDED_S)
    assert place.used() == {}


def test_a_topic_that_ended_is_made_again_as_it_was(place: Place) -> None:
    reader, client = place.world.client(2, timing=TIMING), place.world.client(timing=TIMING)
    client.publish(b"t", b"a")
    place.world.run(ENDED_S)
    assert place.used() == {}
    mailbox = reader.subscribe(b"t")
    client.publish(b"t", b"b")
    assert place.used() == {b"t": b"1"}
    assert [event.payload for event in mailbox.take()] == [b"b"]


@pytest.mark.parametrize("use", ["subscriber", "publisher", "somebody else"])
def test_a_first_use_that_somebody_holds_stays(place: Place, use: str) -> None:
    client = place.world.client(timing=Timing(idle_s=1000.0))
    if use == "subscriber":
        client.subscribe(b"t")
    elif use == "publisher":
        client.publish(b"t", b"a")
    else:
        place.put("b1", b"t")
        session = place.world.servers["b1"].connect(lambda data: None)
        session.feed(command("HELLO", 3) + command("SUBSCRIBE", "t"))
    place.world.run(LOOKED_S)
    assert place.used() == {b"t": b"1"}


def test_what_the_controller_knows_of_stays(place: Place) -> None:
    record = encode_record(settled(single(7, "b1", 1), term=2))
    place.world.servers["b1"].keys.set_fields(RECORDS, {b"placed": record})
    place.put("b1", b"placed")
    place.world.run(LOOKED_S)
    assert place.used() == {}
    assert place.world.servers["b1"].keys.fields(RECORDS) == {b"placed": record}


@pytest.mark.parametrize("forged", [b"rubbish", b"", b"2", b"9" * 5000])
def test_what_is_no_first_use_ends_although_somebody_holds_the_topic(place: Place, forged: bytes) -> None:
    for name in (b"t", b"\xff"):
        place.put("b1", name, forged)
        session = place.world.servers["b1"].connect(lambda data: None)
        session.feed(command("HELLO", 3) + command("SUBSCRIBE", name))
    place.world.run(LOOKED_S)
    assert place.used() == {}


def test_nothing_ends_while_the_ring_changes(place: Place) -> None:
    place.put("b1", b"t")
    place.publish_members(previous_ring=("b2",))
    place.world.run(LOOKED_S)
    assert place.used() == {b"t": b"1"}
    place.publish_members(previous_ring=None)
    place.world.run(LOOKED_S)
    assert place.used() == {}


def test_what_clients_have_written_at_other_brokers_than_the_directory_ends_too(rig: Any) -> None:
    place = Place(rig, "b1", "b2")
    for broker in ("b1", "b2"):
        for number in range(30):
            place.put(broker, b"t%d" % number)
    place.world.run(LOOKED_S)
    assert place.used("b1") == place.used("b2") == {}


def test_a_round_goes_on_after_a_lost_connection(place: Place) -> None:
    place.put("b1", b"t")
    place.world.silent.add("b1")
    place.world.run(LOOKED_S)
    (agent,) = place.world.wired
    agent.cut("server")
    place.world.speak("b1")
    place.world.run(LOOKED_S + 3.0)
    assert place.used() == {}


def test_a_client_that_was_told_of_a_first_use_before_it_ended_asks_again(place: Place) -> None:
    """It knows where the topic is, and comes when that is gone: between its two steps an agent took one."""
    client = place.world.client(timing=TIMING)
    place.world.silent.add("b1")
    client.publish(b"t", b"a")
    place.world.servers["b1"].keys.delete_fields(FIRST_USES, [b"t"])
    place.world.speak("b1")
    place.world.run(1.0)
    assert client.acked == [b"a"]
    assert place.used() == {b"t": b"1"}
