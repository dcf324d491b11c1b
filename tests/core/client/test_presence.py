"""What a client says about the topics it uses, and about its distances."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import pytest

from nearcast.core.client.mailbox import Mailbox, Overflow
from nearcast.core.client.presence import SEEK_S
from nearcast.core.client.turns import TURN_S, TURNS
from nearcast.core.model.counters import PROBED_MAX, REPORTED_MAX, Behind, ClientReport, Role
from nearcast.core.model.distances import Sought
from nearcast.core.model.names import CONTROL, COUNTERS
from nearcast.core.wire.frames import encode_sought

P, S = int(Role.PUBLISHES), int(Role.SUBSCRIBES)


class Listening:
    """Hears what clients say to the agents of all brokers they are connected to."""

    def __init__(self, client: Any) -> None:
        self.reports: list[tuple[str, ClientReport]] = []
        for link in client.machine.links.all_up():
            link.control[COUNTERS] = partial(self._heard, link.broker)
            link.subscribe(COUNTERS)

    def _heard(self, broker: str, payload: bytes, now_s: float) -> None:
        self.reports.append((broker, msgspec.json.decode(payload, type=ClientReport)))

    def uses(self) -> dict[str, int]:
        """What was said since the last look."""
        reports, self.reports = self.reports, []
        return {topic: roles for _, report in reports for topic, roles in report.uses.items()}


def subscribe(client: Any, *topics: bytes, now_s: float) -> None:
    mailbox = Mailbox(1 << 20, 1 << 30, Overflow.DROP_OLDEST, accept_foreign=False)
    for topic in topics:
        client.machine.subscribe(topic, mailbox, topic, now_s)


def test_a_client_that_has_measured_nothing_says_nothing(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(b"t", b"x")
    listening = Listening(client)
    world.run(6.0)
    assert [report for _, report in listening.reports if report.uses or report.round_trips_s] == []


def test_quiet_publishers_and_subscribers_are_named_within_a_round_and_again(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(b"t", b"x")
    subscribe(client, b"t", b"u", now_s=world.now_s)
    world.run(1.0)
    client.machine.presence.probed({"b1": 0.02})
    listening = Listening(client)
    for _ in range(2):
        world.run(TURNS * TURN_S + 0.2)
        reports = [report for _, report in listening.reports if report.uses]
        said: dict[str, int] = {}
        for report in reports:
            assert report.round_trips_s == {"b1": 0.02}
            assert report.behind == {}
            assert report.uses.items() <= {"t": P | S, "u": S}.items(), "an agent takes the newest report for the whole"
            said |= report.uses
        assert said == {"t": P | S, "u": S}
        listening.reports.clear()


def test_a_resting_client_with_one_topic_says_so_once_in_a_round(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    subscribe(client, b"t", now_s=world.now_s)
    world.run(1.0)
    client.machine.presence.probed({"b1": 0.02})
    listening = Listening(client)
    world.run(4 * TURNS * TURN_S)
    assert 4 <= sum(bool(report.uses) for _, report in listening.reports) <= 5
    listening.reports.clear()
    subscribe(client, b"u", b"v", now_s=world.now_s)
    world.run(3 * TURN_S + 0.2)
    assert listening.uses().keys() == {"t", "u", "v"}, "a new topic is named soon"


def test_the_nearest_of_too_many_brokers_are_told(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    subscribe(client, b"t", now_s=world.now_s)
    world.run(1.0)
    client.machine.presence.probed({f"b{number}": 0.001 * (number + 1) for number in range(PROBED_MAX + 10)})
    listening = Listening(client)
    world.run(1.2)
    report = next(report for _, report in listening.reports if report.round_trips_s)
    assert report.round_trips_s.keys() == {f"b{number}" for number in range(PROBED_MAX)}


def test_a_gateway_says_how_far_its_users_are_with_each_topic_it_names(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    subscribe(client, b"t", b"u", now_s=world.now_s)
    world.run(1.0)
    client.machine.presence.behind = {"t": Behind(0.0, 0.08)}.get
    client.machine.presence.probed({"b1": 0.02})
    listening = Listening(client)
    world.run(TURNS * TURN_S + 0.2)
    assert {topic for _, report in listening.reports for topic in report.uses} == {"t", "u"}
    for _, report in listening.reports:
        assert report.behind == ({"t": Behind(0.0, 0.08)} if "t" in report.uses else {})


def test_news_about_distances_reach_every_broker_in_use_at_once(rig: Any) -> None:
    world = rig("b1", "b2")
    client = world.client()
    for number in range(8):
        client.publish(b"t%d" % number, b"x")
    world.run(1.0)
    client.machine.presence.probed({"b1": 0.02})
    listening = Listening(client)
    world.run(TURNS * TURN_S + 0.2)
    listening.reports.clear()
    client.machine.presence.probed({"b1": 0.05})
    world.run(TURN_S + 0.1)
    assert {broker for broker, report in listening.reports if report.round_trips_s == {"b1": 0.05}} == {"b1", "b2"}


def test_patterns_are_told_to_every_broker(rig: Any) -> None:
    world = rig("b1", "b2")
    client = world.client()
    mailbox = Mailbox(1 << 20, 1 << 30, Overflow.DROP_OLDEST, accept_foreign=False)
    client.machine.psubscribe(b"game.*", mailbox, 1, world.now_s)
    world.run(1.0)
    client.machine.presence.probed({"b1": 0.02})
    listening = Listening(client)
    world.run(TURNS * TURN_S + 0.2)
    assert {broker for broker, report in listening.reports if report.patterns == ("game.*",)} == {"b1", "b2"}


def test_many_topics_take_turns(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    count = 2 * TURNS * REPORTED_MAX
    subscribe(client, *(b"t%d" % number for number in range(count)), now_s=world.now_s)
    world.run(4.0)
    client.machine.presence.probed({"b1": 0.02})
    listening = Listening(client)
    world.run(TURNS * TURN_S + 0.2)
    first = listening.uses()
    assert REPORTED_MAX * (TURNS - 1) <= len(first) <= REPORTED_MAX * (TURNS + 1)
    world.run(TURNS * TURN_S)
    assert len(first | listening.uses()) > 1.7 * len(first), "the others come next"


def test_a_client_probes_for_agents_that_ask_for_a_while_and_within_limits(rig: Any) -> None:
    world = rig("b1", "b2")
    client = world.client()
    client.publish(b"t", b"x")
    world.run(1.0)
    presence = client.machine.presence
    world.ask("b1", "PUBLISH", CONTROL + b"t", encode_sought(Sought(("b2", "nowhere"))))
    world.ask("b2", "PUBLISH", CONTROL + b"t", encode_sought(Sought(("b2", "nowhere"))))
    world.run(0.2)
    assert presence.sought(world.now_s) == {"b2"}
    assert presence.sought(world.now_s + SEEK_S) == frozenset()
    presence.seek((f"b{number}" for number in range(1000)), world.now_s)
    assert presence.sought(world.now_s) == {"b1", "b2"}, "those it knows"


@pytest.mark.parametrize("payload", [b"P", b"P{}", b'P{"brokers":[1]}', b'P{"brokers":' + b"[" * 9000, b"P[]"])
def test_what_is_no_request_is_ignored(rig: Any, payload: bytes) -> None:
    world = rig("b1")
    client = world.client()
    client.publish(b"t", b"x")
    world.run(1.0)
    world.ask("b1", "PUBLISH", CONTROL + b"t", payload)
    client.publish(b"t", b"y")
    world.run(1.0)
    assert client.machine.presence.sought(world.now_s) == frozenset()
