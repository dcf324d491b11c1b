"""Links of a client: the handshake and its refusals, seeds, leases, and opening again without a rush."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from nearcast.core.client.links import RECONNECT_BURST
from nearcast.core.client.machine import Client
from nearcast.core.model.membership import BrokerInfo, Ready, encode_membership
from nearcast.core.model.names import CLAIM_KEY, GRANTS, MEMBERS, READY_KEY, WANTED, inbox_channel
from nearcast.core.model.settings import DEFAULT_TIMING
from nearcast.core.wire.backend import Credentials
from nearcast.core.wire.effects import Connect, Disconnect
from nearcast.core.wire.lease import OPEN_MAX
from nearcast.core.wire.link import Link
from nearcast.core.wire.scripts import INSTALL_MEMBERS
from nearcast.errors import AuthenticationFailed, ConnectFailed, NotACluster

PATIENCE_S = DEFAULT_TIMING.lease_s


class Waiting:
    """A flow that waits for a link."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, str]] = []

    def linked(self, link: Link, now_s: float) -> None:
        link.users[self] = None
        self.seen.append(("linked", link.broker))

    def unlinked(self, link: Link, now_s: float) -> None:
        self.seen.append(("unlinked", link.broker))


def test_a_seed_becomes_the_broker_it_says_it_is(rig: Any) -> None:
    world = rig("b1", "b2")
    client = world.client(7)
    assert list(client.sessions) == ["b1"]
    assert client.machine.membership == world.membership
    assert client.machine.links.opened == 1
    assert world.channels("b1") == {MEMBERS, inbox_channel(7)}
    assert client.sessions["b1"].name == "nearcast-0000000000000007"


def test_two_seeds_of_one_broker_are_one_link(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    client.machine.links.seed("redis://b1?", world.now_s)
    world.servers["b1?"] = world.servers["b1"]
    client.settle()
    assert list(client.sessions) == ["b1"]
    assert [link.broker for link in client.machine.links.all_up()] == ["b1"]


@pytest.mark.parametrize(
    ("password", "given", "says"),
    [
        (
            "secret",
            Credentials(),
            r"NOAUTH.*: give the user name and password in the URL, redis://user:password@host:port",
        ),
        ("secret", Credentials("", "wrong"), "WRONGPASS"),
        ("secret", Credentials("bob", "secret"), "WRONGPASS"),
    ],
)
def test_refused_credentials_are_said_with_the_remedy(rig: Any, password: str, given: Credentials, says: str) -> None:
    world = rig("b1")
    world.servers["b1"].password = password.encode()
    client = world.client(credentials=given)
    error = client.machine.links.last_error
    assert isinstance(error, AuthenticationFailed)
    with pytest.raises(AuthenticationFailed, match=says):
        raise error
    assert client.sessions == {}


def test_right_credentials_are_taken(rig: Any) -> None:
    world = rig("b1")
    world.servers["b1"].password = b"secret"
    client = world.client(credentials=Credentials("", "secret"))
    assert client.machine.links.opened == 1


@pytest.mark.parametrize(
    "prepare",
    [
        ("DEL", READY_KEY),
        ("DEL", MEMBERS),
        ("SET", READY_KEY, "garbage"),
        ("SET", READY_KEY, msgspec.json.encode(Ready("b1", "an earlier run"))),
    ],
    ids=["no ready key", "no membership", "garbage", "earlier run"],
)
def test_a_server_without_an_agent_is_refused(rig: Any, prepare: tuple[str | bytes, ...]) -> None:
    world = rig("b1")
    world.ask("b1", *prepare)
    client = world.client()
    error = client.machine.links.last_error
    assert isinstance(error, NotACluster)
    assert "start `nearcast agent` for it, or wait" in str(error)
    world.prepare("b1")
    world.run(3.0)
    assert client.machine.links.opened == 1


def test_an_old_server_is_refused_with_what_is_needed(rig: Any) -> None:
    client = Client(1, Random(1))
    client.links.seed("redis://old", 0.0)
    client.connected("seed redis://old", 0.0)
    client.received("seed redis://old", b"-ERR unknown command 'HELLO'\r\n", 0.0)
    assert isinstance(client.links.last_error, ConnectFailed)
    assert "needs Valkey, or Redis 6.2 or newer" in str(client.links.last_error)


@pytest.mark.parametrize("data", [b"HTTP/1.1 400 Bad Request\r\n", b"+OK\r\n+OK\r\n", b":1\r\n" * 20])
def test_a_server_that_speaks_something_else_is_hung_up_on(data: bytes) -> None:
    client = Client(1, Random(1))
    client.links.seed("redis://web", 0.0)
    client.connected("seed redis://web", 0.0)
    client.received("seed redis://web", data, 0.0)
    assert isinstance(client.links.last_error, ConnectFailed)
    assert client.effects[-1] == Disconnect("seed redis://web")
    client.received("seed redis://web", data, 0.1)


def test_a_server_that_now_belongs_to_another_broker_is_not_used(rig: Any) -> None:
    world = rig("b1", "b2")
    client = world.client()
    world.ask("b2", "SET", READY_KEY, msgspec.json.encode(Ready("b9", "run-b2")))
    client.machine.links.reach("b2", world.now_s)
    client.settle()
    assert client.machine.links.up("b2") is None
    assert "now belongs to b9" in str(client.machine.links.last_error)


def test_a_flow_hears_of_its_link_when_it_is_up_and_when_it_is_gone(rig: Any) -> None:
    world = rig("b1", "b2")
    client, flow = world.client(), Waiting()
    client.machine.links.want("b2", flow, world.now_s)
    assert flow.seen == []
    client.settle()
    client.cut("b2")
    assert flow.seen == [("linked", "b2"), ("unlinked", "b2")]


def test_a_link_that_is_up_is_given_at_once(rig: Any) -> None:
    world = rig("b1")
    client, flow = world.client(), Waiting()
    client.machine.links.want("b1", flow, world.now_s)
    assert flow.seen == [("linked", "b1")]


def test_a_broker_that_left_the_membership_is_hung_up_on(rig: Any) -> None:
    world = rig("b1", "b2")
    client = world.client()
    client.machine.links.reach("b2", world.now_s)
    client.settle()
    smaller = msgspec.structs.replace(world.membership, version=2, brokers={"b1": BrokerInfo("redis://b1")})
    world.ask("b1", "EVAL", INSTALL_MEMBERS, 1, MEMBERS, 2, encode_membership(smaller), 0)
    client.settle()
    assert list(client.sessions) == ["b1"]
    world.run(3.0)
    assert list(client.sessions) == ["b1"]


@pytest.mark.parametrize("payload", [b"", b"garbage", b"{}", b'{"version": "x"}', b"\xff", b"9" * 50])
def test_garbage_on_the_membership_channel_is_ignored(rig: Any, payload: bytes) -> None:
    world = rig("b1")
    client = world.client()
    world.ask("b1", "PUBLISH", MEMBERS, payload)
    client.settle()
    assert client.machine.membership == world.membership
    assert list(client.sessions) == ["b1"]


def test_a_forged_membership_sends_no_client_to_a_foreign_address(rig: Any) -> None:
    world = rig("b1", "b2")
    client = world.client()
    brokers = dict.fromkeys(("b1", "b2"), BrokerInfo("redis://elsewhere"))
    forged = msgspec.structs.replace(world.membership, version=99, brokers=brokers)
    world.ask("b1", "PUBLISH", MEMBERS, encode_membership(forged))
    client.machine.links.reach("b2", world.now_s)
    connects = [effect.url for effect in client.machine.effects if isinstance(effect, Connect)]
    assert client.machine.membership == world.membership
    assert connects == ["redis://b2"]


def test_news_of_the_membership_is_asked_about_once_at_a_time(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    link = client.machine.links.up("b1")
    for _ in range(100):
        client.machine.links.received("b1", b">3\r\n$7\r\nmessage\r\n$4\r\nnc:m\r\n$1\r\n2\r\n", world.now_s)
    assert link.take().count(b"HGET") == 1


def test_an_older_membership_is_ignored(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    older = encode_membership(msgspec.structs.replace(world.membership, version=0, ring=()))
    world.ask("b1", "HSET", MEMBERS, "version", 0, "document", older)
    world.ask("b1", "PUBLISH", MEMBERS, "0")
    client.settle()
    assert client.machine.membership == world.membership


# --- leases


def test_a_lease_ends_so_long_after_its_question_was_sent(rig: Any) -> None:
    world = rig("b1")
    asked_s = world.now_s
    world.silent.add("b1")
    client = world.client()
    world.now_s += 0.7
    world.speak("b1")
    link = client.machine.links.up("b1")
    assert link.lease_until_s == asked_s + DEFAULT_TIMING.lease_s


def test_a_lease_is_renewed_every_heartbeat(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    world.run(10.0)
    link = client.machine.links.up("b1")
    assert link.lease_until_s > world.now_s + DEFAULT_TIMING.lease_s - 2 * DEFAULT_TIMING.heartbeat_s - 0.11


def test_a_server_whose_beats_are_not_granted_gives_no_lease(rig: Any) -> None:
    world = rig("b1")
    world.unleased.add("b1")
    client = world.client()
    for beat in range(1, 20):
        world.ask("b1", "HSET", CLAIM_KEY, "beat", beat, "granted", 0)
        world.run(0.1)
    assert client.machine.links.up("b1").lease_until_s < world.now_s


def test_a_grant_that_was_noted_late_proves_nothing(rig: Any) -> None:
    """The agent slept between its beat and the leader's answer; a client that asked meanwhile has found that beat."""
    world = rig("b1")
    client = world.client()
    world.unleased.add("b1")
    world.run(0.3)
    link = client.machine.links.up("b1")
    world.ask("b1", "HSET", CLAIM_KEY, "beat", 50)
    world.run(4.0)
    before_s = link.lease_until_s
    assert before_s < world.now_s
    world.ask("b1", "HSET", CLAIM_KEY, "granted", 50)
    world.run(1.0)
    assert link.lease_until_s < world.now_s
    world.ask("b1", "HSET", CLAIM_KEY, "beat", 51, "granted", 51)
    world.run(DEFAULT_TIMING.heartbeat_s)
    assert link.lease_until_s > world.now_s


def test_a_new_link_asks_for_a_grant_at_once_and_listens_until_it_has_one(rig: Any) -> None:
    world = rig("b1")
    world.unleased.add("b1")
    client = world.client()
    assert world.channels("b1") >= {GRANTS}
    assert client.machine.links.up("b1").lease_until_s < world.now_s
    world.unleased.clear()
    world.ask("b1", "PUBLISH", WANTED, "")
    assert client.machine.links.up("b1").lease_until_s == world.now_s + DEFAULT_TIMING.lease_s
    assert GRANTS not in world.channels("b1")


def test_a_server_that_stands_still_is_not_asked_without_end(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    world.silent.add("b1")
    link = client.machine.links.up("b1")
    for _ in range(100):
        client.machine.links._granted(link, b"", world.now_s)
    assert link.take().count(b"HMGET") == OPEN_MAX


def test_a_server_that_does_not_answer_is_hung_up_on(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    world.silent.add("b1")
    world.run(2 * PATIENCE_S + DEFAULT_TIMING.heartbeat_s)
    assert client.machine.links.up("b1") is None
    assert "b1 has not answered for" in str(client.machine.links.last_error)


def test_a_link_is_alive_while_bytes_arrive(rig: Any) -> None:
    """The proof of a lease may stand behind a backlog of other answers."""
    world = rig("b1")
    client = world.client()
    link = client.machine.links.up("b1")
    link.subscribe(b"busy")
    client.settle()
    client.deaf.add("b1")
    for _ in range(round(3 * PATIENCE_S / 0.5)):
        world.run(0.5)
        client.machine.received("b1", b">3\r\n$7\r\nmessage\r\n$4\r\nbusy\r\n$1\r\nx\r\n", world.now_s)
    assert client.machine.links.up("b1") is link


def test_a_client_that_was_paused_reads_before_it_hangs_up(rig: Any) -> None:
    world = rig("b1")
    client = world.client()
    world.run(1.0)
    client.deaf.add("b1")
    world.run(DEFAULT_TIMING.heartbeat_s + 0.1)  # a question is open, its answer is in the socket
    world.now_s += 3 * PATIENCE_S
    client.machine.tick(world.now_s)
    client.deaf.clear()
    client.hear()
    world.run(1.0)
    assert client.machine.links.last_error is None


def test_clients_of_a_server_that_stands_still_do_not_come_back_at_once(rig: Any) -> None:
    world = rig("b1")
    clients = [world.client(number) for number in range(1, 21)]
    world.silent.add("b1")
    left: dict[int, float] = {}
    while len(left) < len(clients):
        world.run(0.1)
        for number, client in enumerate(clients):
            if client.machine.links.last_error is not None:
                left.setdefault(number, world.now_s)
    moments = list(left.values())
    assert max(moments) - min(moments) > PATIENCE_S / 2
    assert max(moments.count(moment) for moment in moments) <= 4


# --- opening again


def attempts(client: Client, seconds: float) -> list[float]:
    """When a client that nobody lets in tries to connect."""
    tried, now_s = [], 0.0
    while now_s < seconds:
        for effect in client.effects:
            if isinstance(effect, Connect):
                tried.append(now_s)
        opened = [effect.link for effect in client.effects if isinstance(effect, Connect)]
        client.effects.clear()
        for link in opened:
            client.lost(link, "refused", now_s)
        now_s += 0.05
        client.tick(now_s)
    return tried


def test_attempts_slow_down_to_the_longest_pause() -> None:
    client = Client(1, Random(1))
    client.links.seed("redis://gone", 0.0)
    tried = attempts(client, 60.0)
    early = [moment for moment in tried if moment < 2.0]
    assert 4 <= len(early) <= 12
    assert 60 / DEFAULT_TIMING.reconnect_max_s - 5 <= len(tried) - len(early) <= 2 * 60 / DEFAULT_TIMING.reconnect_max_s


def test_many_lost_links_are_not_all_opened_at_once() -> None:
    client = Client(1, Random(1))
    for number in range(200):
        client.links.seed(f"redis://gone{number}", 0.0)
    tried = attempts(client, 10.0)
    again = [moment for moment in tried if moment > 0.0]
    assert len(tried) - len(again) == 200
    assert len(again) <= RECONNECT_BURST + 4.0 * 10.0 + 1


def test_a_closed_client_opens_nothing() -> None:
    client = Client(1, Random(1))
    client.close(0.0)
    client.links.seed("redis://b1", 0.0)
    client.tick(1.0)
    assert client.effects == []


def test_a_connection_nobody_waits_for_is_closed() -> None:
    client = Client(1, Random(1))
    client.connected("b1", 0.0)
    assert client.effects == [Disconnect("b1")]


def test_seeds_are_tried_again_when_no_broker_is_reached(rig: Any) -> None:
    """The brokers' addresses have changed; the name the program was given still leads to one."""
    world = rig("b1")
    world.servers = {"any": world.servers["b1"], "b1": world.servers["b1"]}
    client = world.client()
    world.run(0.5)
    del world.servers["b1"]
    client.cut("b1")
    world.run(5.0)
    assert client.machine.links.up("b1") is not None


def test_seeds_are_left_alone_while_a_broker_is_there(rig: Any) -> None:
    world = rig("b1")
    world.client()
    world.run(0.5)
    before = world.servers["b1"].connections
    world.run(10.0)
    assert world.servers["b1"].connections == before


def test_without_a_lease_seeds_are_tried_at_a_measured_pace(rig: Any) -> None:
    world = rig("b1")
    world.client()
    world.unleased.add("b1")
    world.run(3.0)
    before = world.servers["b1"].connections
    world.run(10.0)
    assert world.servers["b1"].connections - before <= 10 / DEFAULT_TIMING.reconnect_max_s + 1
