"""What the simulated server offers beyond a real one: observers, restarts, one delivery per feed, virtual time."""

import pytest

from nearcast.core.model.names import RECORDS
from nearcast.core.model.placement import first_use
from nearcast.core.wire.frames import encode_record
from nearcast.core.wire.link import command
from nearcast.core.wire.scripts import FIRST_USE, INSTALL, INSTALL_MEMBERS
from nearcast.sim.valkey.server import SimServer


class Peer:
    """A session and the deliveries it got."""

    def __init__(self, server, *commands):
        self.deliveries = []
        self.session = server.connect(self.deliveries.append)
        self.send(("HELLO", 3), *commands)
        self.deliveries.clear()

    def send(self, *commands):
        self.session.feed(b"".join(command(*parts) for parts in commands))
        return self.deliveries[-1] if self.deliveries else b""


class Notebook:
    """An observer that keeps all it sees."""

    def __init__(self):
        self.seen = []

    def published(self, server, channel, payload, receivers):
        self.seen.append((server.name, channel, payload, [session.name for session in receivers]))

    def installed(self, server, topic, record):
        self.seen.append((server.name, topic, record))

    def wiped(self, server):
        self.seen.append((server.name, "wiped"))


class Clock:
    now_s = 100.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def server(clock):
    return SimServer("s1", clock, "first-run")


def test_one_feed_gives_one_delivery_per_session_in_the_order_of_execution(server):
    subscriber = Peer(server, ("SUBSCRIBE", "x", "y"))
    publisher = Peer(server)
    publisher.send(("PUBLISH", "x", 1), ("PUBLISH", "y", 2), ("PUBLISH", "x", 3))
    assert publisher.deliveries == [b":1\r\n:1\r\n:1\r\n"]
    assert len(subscriber.deliveries) == 1
    assert [line for line in subscriber.deliveries[0].split(b"\r\n") if line.isdigit()] == [b"1", b"2", b"3"]


def test_a_feed_without_a_whole_command_delivers_nothing(server):
    peer = Peer(server)
    peer.session.feed(command("PING")[:-1])
    assert peer.deliveries == []


def test_sessions_are_served_in_the_order_of_subscribing(server):
    order = []
    for name in ("c", "a", "b"):
        session = server.connect(lambda _, name=name: order.append(name))
        session.feed(command("HELLO", 3) + command("SUBSCRIBE", "x"))
    order.clear()
    Peer(server).send(("PUBLISH", "x", 1))
    assert order == ["c", "a", "b"]


def test_a_delivery_that_feeds_again_keeps_every_order(server):
    """The first subscriber answers at once; the second must see the question before the answer."""

    def answer(data):
        if b"question" in data:
            first.feed(command("PUBLISH", "x", "answer"))

    first = server.connect(answer)
    first.feed(command("HELLO", 3) + command("SUBSCRIBE", "x"))
    second = Peer(server, ("SUBSCRIBE", "x"))
    Peer(server).send(("PUBLISH", "x", "question"))
    data = b"".join(second.deliveries)
    assert 0 < data.index(b"question") < data.index(b"answer")


def test_a_closed_session_gets_nothing_and_counts_for_nothing(server):
    gone = Peer(server, ("SUBSCRIBE", "x"), ("PSUBSCRIBE", "*"))
    gone.session.close()
    gone.session.close()
    other = Peer(server)
    assert other.send(("PUBLISH", "x", 1), ("PUBSUB", "NUMSUB", "x"), ("PUBSUB", "NUMPAT")) == (
        b":0\r\n*2\r\n$1\r\nx\r\n:0\r\n:0\r\n"
    )
    assert gone.send(("PING",)) == b""
    assert list(server.sessions) == [other.session]


def test_a_session_closed_while_output_waits_gets_nothing(server):
    victim = Peer(server)
    closer = server.connect(lambda _: victim.session.close())
    closer.feed(command("HELLO", 3) + command("SUBSCRIBE", "x"))
    victim = Peer(server, ("SUBSCRIBE", "x"))
    Peer(server).send(("PUBLISH", "x", 1))
    assert victim.deliveries == []


def test_a_restart_forgets_everything(server):
    peer = Peer(server, ("SUBSCRIBE", "x"), ("SET", "k", "v"), ("HSET", "h", "f", "v"), ("SET", "e", "v", "PX", 5))
    server.restart("second-run")
    assert peer.session.closed
    assert not server.sessions
    other = Peer(server)
    assert other.send(("EXISTS", "k", "h", "e"), ("PUBLISH", "x", 1)) == b":0\r\n:0\r\n"
    info = other.send(("INFO",))
    assert b"run_id:second-run\r\n" in info
    assert b"total_connections_received:1\r\n" in info


def test_keys_end_by_the_clock_that_was_given(server, clock):
    peer = Peer(server, ("SET", "k", "v", "PXAT", 100_500), ("SET", "p", "v", "PX", 400))
    clock.now_s = 100.4
    assert peer.send(("PTTL", "k"), ("PTTL", "p"), ("EXISTS", "k", "p")) == b":100\r\n:0\r\n:2\r\n"
    clock.now_s = 100.5
    assert peer.send(("EXISTS", "k", "p")) == b":1\r\n"
    clock.now_s = 100.501
    assert peer.send(("EXISTS", "k", "p")) == b":0\r\n"


def test_output_rate_is_taken_over_a_second_and_more(server, clock):
    peer = Peer(server)
    peer.send(("ECHO", "x" * 20_480))
    assert b"instantaneous_output_kbps:0.00\r\n" in peer.send(("INFO", "stats"))
    clock.now_s += 2.0
    assert b"instantaneous_output_kbps:10." in peer.send(("INFO", "stats"))


def test_observers_see_messages_with_their_receivers(server):
    Peer(server, ("CLIENT", "SETNAME", "ann"), ("SUBSCRIBE", "x"))
    Peer(server, ("HELLO", 3, "SETNAME", "bob"), ("PSUBSCRIBE", "x*"), ("SUBSCRIBE", "x"))
    server.observers.append(notebook := Notebook())
    Peer(server).send(("PUBLISH", "x", 1), ("PUBLISH", "y", 2))
    assert notebook.seen == [("s1", b"x", b"1", ["ann", "bob", "bob"]), ("s1", b"y", b"2", [])]


def test_observers_see_records_that_were_really_installed(server):
    server.observers.append(notebook := Notebook())
    old, new = b'{"version":5,"term":1}', b'{"version":6,"term":1}'
    Peer(server).send(
        ("EVAL", INSTALL_MEMBERS, 1, "nc:m", 3, "document", 0),
        ("EVAL", INSTALL, 3, "nc:r", "nc:first", "nc:t", 1, "t", 6, new, "t", 5, old),
        ("EVAL", INSTALL, 3, "nc:r", "nc:first", "nc:t", 0, "t", 7, old),
        ("EVAL", FIRST_USE, 1, "nc:first", 3, "t"),
        ("EVAL", FIRST_USE, 1, "nc:first", 3, "u", "u"),
    )
    assert notebook.seen == [
        ("s1", b"nc:m", b"3", []),
        ("s1", b"t", new),
        ("s1", b"nc:c:t", b"R" + new, []),
        ("s1", b"u", encode_record(first_use(3, "s1"))),
    ]


def test_what_the_simulated_server_cannot_do_is_said(server):
    assert b"does not have this script" in Peer(server).send(("EVAL", "return 1", 0))
    received = []
    server.connect(received.append).feed(command("SUBSCRIBE", "x") + command("UNSUBSCRIBE") + command("HELLO", 2))
    assert received[0].count(b"RESP3 only") == 2
    assert b"-NOPROTO" in received[0]


def test_an_observer_sees_that_records_are_deleted(clock):
    server, observer = SimServer("b1", clock, "run"), Notebook()
    server.observers.append(observer)
    session = server.connect(lambda data: None)
    session.feed(command("DEL", "other"))
    session.feed(command("DEL", "other", RECORDS))
    assert observer.seen == [("b1", "wiped")]
