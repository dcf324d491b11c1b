"""The simulated server against a real one: the same commands must give the same bytes.

A case is a text: one step a line, `session command | command ...`, the commands of a step written at once. Arguments are
percent-decoded, `""` is the empty one, `$INSTALL` and the like stand for our scripts. After each step the bytes that every
session of the case got are noted; the notes of both servers must be equal. Sessions have sent HELLO 3, except in the
raw cases, which are one stream from the first byte to the end of the connection.

The end of a step's output is found by an ECHO on every session, not by waiting: whatever a server wrote to a session before
stands before the answer.
"""

import asyncio
import re
import socket
import time
from urllib.parse import unquote_to_bytes

import hiredis
import pytest

from nearcast.core.names import MEMBERS, RECORDS
from nearcast.core.resp import command
from nearcast.core.scripts import FIRST_USE, INSTALL, INSTALL_MEMBERS
from nearcast.runtime.servers import LocalServer
from nearcast.sim.commands import COMMANDS
from nearcast.sim.server import SimServer

SCRIPTS = {"$INSTALL": INSTALL, "$MEMBERS": INSTALL_MEMBERS, "$FIRST_USE": FIRST_USE}
END_OF_STEP = command("ECHO", "end of step")
END_OF_STEP_REPLY = b"$11\r\nend of step\r\n"
FAR_MS = 4102444800000  # the year 2100

GLOB_FIELDS = 'abc a b "" a*c [x] a-c z] ^q \\back x- x ] - %20 %00 %0a %25 a%0ab'
GLOBS = (
    r"* ** *** ? ?? a* *a *c *b*c* a*c a?c abc nothing [a-z] [z-a] [a-c]* [abc] [^a] [^a-z]* [!a] [^^] ^? \? a\*c \[x\] \a "
    r"[\]] [\-x]* [a\-c]* [a-] [a-]* [x-] *] [a-a] ?[*]? "  # classes with signs in them
    r"[] [^] []] [ [^ [ab [a-c [a- [\ a[ \ a\ *\ " + '""'  # classes and escapes that are not finished
).split(" ")

CASES = {
    "ping and echo": """
        a PING | PING hello | ping hello | PING a b | PING "" | ECHO hi | ECHO "" | ECHO | ECHO a b
    """,
    "unknown commands": """
        a NOSUCH | NOSUCH a b c | nosuch a | NOSUCH%0d%0ax a%0d%0ab | "" a
        a NOSUCH 0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789 \
            0123456789012345678901234567890123456789 x
        a N0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789\
0123456789012345678901234567890123456789
    """,
    "strings": """
        a GET k | SET k v | GET k | SET k "" | GET k | GET | GET a b | SET k | get k | sEt k w | GET k
        a EXISTS k | EXISTS k k none | EXISTS | DEL k k none | DEL k | DEL | EXISTS k
    """,
    "set if not there": """
        a SET k 1 NX | SET k 2 NX | GET k | SET k 3 nx NX | SET h x | DEL h | HSET h f v | SET h x NX | SET h x | GET h
    """,
    "set options that are wrong": """
        a SET k v PX | SET k v PX x | SET k v PX 0 | SET k v PX -5 | SET k v PXAT 0 | SET k v PXAT x | SET k v WHAT
        a SET k v PX 5000 PXAT 5000 | SET k v PX 9223372036854775807 | SET k v PX 9223372036854775808 | SET k v NX PX
        a SET k v PX 05 | SET k v PX +5 | SET k v PX x WHAT | EXISTS k
    """,
    "ends in the past": """
        a SET k v | SET k w PXAT 1 | GET k | EXISTS k | PTTL k | SET k v NX PXAT 1 | GET k | SET k v NX | GET k
        a SET k x NX PXAT 1 | GET k | PEXPIRE k 0 | GET k | SET k v | PEXPIRE k -1 | EXISTS k | DEL k
    """,
    "ends in the future": f"""
        a SET k v PXAT {FAR_MS} | GET k | SET k w | PTTL k | PTTL none | PTTL | PEXPIRE k 99999999 | SET k x | PTTL k
        a PEXPIRE none 5 | PEXPIRE none x | PEXPIRE k x | PEXPIRE k | PEXPIRE k 9223372036854775807 | PTTL k
        a SET k 1 PX 99999999 NX | SET k 1 PX 1 PX 99999999 nx | GET k
    """,
    "incr": """
        a INCR k | INCR k | GET k | SET k -1 | INCR k | SET k 9223372036854775807 | INCR k | SET k 05 | INCR k | SET k -0
        a INCR k | SET k "" | INCR k | SET k %201 | INCR k | SET k 1.5 | INCR k | INCR | HSET h f v | INCR h
        a SET k -9223372036854775808 | INCR k | SET k -9223372036854775809 | INCR k
    """,
    "hashes": """
        a HSET h a 1 | HSET h a 2 b 3 | HSET h a 4 a 5 | HGET h a | HGET h none | HGET none a | HGETALL h | HGETALL none
        a HLEN h | HLEN none | HSETNX h a 9 | HSETNX h c 9 | HSETNX n f v | HGETALL h | HDEL h a none a | HDEL none a
        a HSET h a 7 | HGETALL h | HDEL h a b c | EXISTS h | HLEN h | HSET h "" "" | HGETALL h | HGET h "" | DEL h | HLEN h
        a HSET h | HSET h a | HSET h a 1 b | HGET h | HGETALL | HLEN | HSETNX h a | HDEL h | HGET h a b | EXISTS h
    """,
    "the wrong type": """
        a SET k v | HGET k a | HSET k a b | HSETNX k a b | HLEN k | HGETALL k | HDEL k a | HSCAN k 0 | HSCAN k 0 WHAT
        a HSET h a b | GET h | INCR h | PTTL h | EXISTS h k | SET h x | GET h
    """,
    "hscan": """
        a HSET h a 1 b 2 | HSCAN h 0 | HSCAN h 5 | HSCAN h x | HSCAN h -1 | HSCAN h 18446744073709551616 | HSCAN none 0
        a HSCAN h 0 COUNT 1 | HSCAN h 0 COUNT 0 | HSCAN h 0 COUNT x | HSCAN h 0 COUNT | HSCAN h 0 WHAT 1 | HSCAN h
        a HSCAN h 0 MATCH b COUNT 10 | HSCAN h 0 match b MATCH a | HSCAN none 0 WHAT | HSCAN h 0 MATCH | HSCAN none x
    """,
    "globs of hscan": "\n".join(
        ["a HSET h " + " ".join(f"{field} 1" for field in GLOB_FIELDS.split(" "))]
        + [f"a HSCAN h 0 MATCH {glob}" for glob in GLOBS]
    ),
    "subscribe and unsubscribe": """
        a SUBSCRIBE x y x | SUBSCRIBE | PSUBSCRIBE x* x | PSUBSCRIBE | subscribe z
        a UNSUBSCRIBE never | UNSUBSCRIBE x never y y | PUNSUBSCRIBE never | PUNSUBSCRIBE x* x* | UNSUBSCRIBE | UNSUBSCRIBE
        a PUNSUBSCRIBE | PUNSUBSCRIBE | UNSUBSCRIBE p q | PUNSUBSCRIBE p q | SUBSCRIBE "" | GET none | UNSUBSCRIBE ""
    """,
    "publish": """
        a SUBSCRIBE x
        b PUBLISH x 1 | PUBLISH x "" | PUBLISH none 1 | PUBLISH x | PUBLISH x 1 2 | PUBLISH X 1 | publish x %00%0d%0a
        b SUBSCRIBE x
        a PUBLISH x 2
        c PUBLISH x 3
        a UNSUBSCRIBE x
        c PUBLISH x 4
        c PUBLISH "" 5
        a SUBSCRIBE ""
        c PUBLISH "" 6
    """,
    "own messages come after the reply": """
        a SUBSCRIBE x | PUBLISH x 1 | PUBLISH x 2 | GET none | UNSUBSCRIBE x | PUBLISH x 3
        b PSUBSCRIBE x* | SUBSCRIBE x | PUBLISH x 4 | PING
        a PUBLISH x 5 | SUBSCRIBE x | PUBLISH x 6
        b PUBLISH x 7 | PUBLISH x 8
    """,
    "own messages of a script come after its reply": """
        a SUBSCRIBE nc:c:s nc:c:t nc:m
        a EVAL $INSTALL 1 nc:r 1 s 5 {"version":5,"term":1} t 6 {"version":6,"term":1} | PING
        a EVAL $MEMBERS 1 nc:m 3 document | PING
    """,
    "channel and pattern": """
        a SUBSCRIBE x | PSUBSCRIBE x*
        b PUBLISH x 1 | PUBLISH xy 2 | PUBLISH y 3
        b PSUBSCRIBE x*
        c PUBLISH x 4
        a UNSUBSCRIBE x
        c PUBLISH x 5
        a PUNSUBSCRIBE
        c PUBLISH x 6
        b PSUBSCRIBE * | PUBLISH "" 7 | PSUBSCRIBE "" | PUBLISH "" 8 | PUNSUBSCRIBE | PUBLISH x 9
        b PSUBSCRIBE %25d | PUBLISH %25d %25b
    """,
    "pubsub": """
        a PUBSUB NUMSUB x | PUBSUB NUMSUB | PUBSUB CHANNELS | PUBSUB NUMPAT | SUBSCRIBE x | PSUBSCRIBE x* y*
        b SUBSCRIBE x | PSUBSCRIBE x*
        b PUBSUB NUMSUB x y x | PUBSUB NUMPAT | PUBSUB CHANNELS | PUBSUB CHANNELS x | PUBSUB channels y* | UNSUBSCRIBE
        b PUBSUB NUMSUB x | PUNSUBSCRIBE | PUBSUB NUMPAT | PUBSUB numsub ""
        a UNSUBSCRIBE | PUBSUB CHANNELS | PUBSUB NUMSUB x | PUNSUBSCRIBE x* | PUBSUB NUMPAT
        a PUBSUB | PUBSUB WHAT | PUBSUB CHANNELS x y | PUBSUB NUMPAT x
    """,
    "a session that quits": """
        a SUBSCRIBE x | PSUBSCRIBE x*
        b PUBLISH x 1 | PUBSUB NUMSUB x | PUBSUB NUMPAT
        a QUIT
        b PUBLISH x 2 | PUBSUB NUMSUB x | PUBSUB NUMPAT
    """,
    "names of sessions": """
        a CLIENT GETNAME | CLIENT SETNAME bob | CLIENT GETNAME | CLIENT SETNAME "" | CLIENT GETNAME | client setname x%20y
        a CLIENT SETNAME x%0ay | CLIENT SETNAME %7f | CLIENT SETNAME | CLIENT SETNAME a b | CLIENT | CLIENT WHAT
        a CLIENT getname x | HELLO 3 SETNAME ann | CLIENT GETNAME | HELLO 3 SETNAME "" | CLIENT GETNAME
    """,
    "auth where no password is set": """
        a AUTH x | AUTH default x | AUTH bob x | AUTH a b c | AUTH | HELLO 3 AUTH bob x SETNAME y | CLIENT GETNAME | PING
        a HELLO 3 AUTH default x SETNAME z | CLIENT GETNAME
    """,
    "info of what is not there": "a INFO nosuch | INFO nosuch neither",
    "install": """
        b SUBSCRIBE nc:c:s nc:c:t nc:c:u
        a EVAL $INSTALL 1 nc:r 1 s 5 {"version":5,"term":1} | HGETALL nc:r
        a EVAL $INSTALL 1 nc:r 1 s 4 {"version":4,"term":1} t 7 {"version":7,"term":1} | HGETALL nc:r
        a EVAL $INSTALL 1 nc:r 0 s 9 {"version":9,"term":0} u 1 {"version":1,"term":0} | HGETALL nc:r
        a EVAL $INSTALL 1 nc:r 2 s 5 {"version":5,"term":2,"forced":true} | HGETALL nc:r
        a EVAL $INSTALL 1 nc:r 2 s 4 {"version":4,"term":2} s 6 {"version":6,"term":2} s 6 {"version":6,"term":2,"x":1}
        a EVAL $INSTALL 1 nc:r 1 s 7 {"version":7,"term":1} | EVAL $INSTALL 1 nc:r 2 | HGETALL nc:r
        a EVAL $INSTALL 1 other 0 s 1 {"version":1,"term":0} | HGETALL other | eval $INSTALL 1 nc:r 3 u 0 {"version":0}
    """,
    "install of the membership": """
        b SUBSCRIBE nc:m
        a EVAL $MEMBERS 1 nc:m 3 three | HGETALL nc:m
        a EVAL $MEMBERS 1 nc:m 2 two | EVAL $MEMBERS 1 nc:m 3 another | EVAL $MEMBERS 1 nc:m 10 ten | EVAL $MEMBERS 1 nc:m 9 n
        a HGETALL nc:m | EVAL $MEMBERS 1 other 0 zero | HGETALL other
    """,
    "first use": """
        b SUBSCRIBE nc:c:t
        a EVAL $FIRST_USE 2 nc:r nc:m t 3 {"version":1} | EVAL $FIRST_USE 2 nc:r nc:m t "" x | EXISTS nc:r
        a EVAL $MEMBERS 1 nc:m 3 three
        a EVAL $FIRST_USE 2 nc:r nc:m t 2 {"version":1} | EVAL $FIRST_USE 2 nc:r nc:m t 4 {"version":1} | EXISTS nc:r
        a EVAL $FIRST_USE 2 nc:r nc:m t 03 {"version":1} | EXISTS nc:r
        a EVAL $FIRST_USE 2 nc:r nc:m t 3 {"version":1} | HGETALL nc:r
        a EVAL $FIRST_USE 2 nc:r nc:m t 3 {"version":2} | HGETALL nc:r
        a EVAL $MEMBERS 1 nc:m 4 four | EVAL $FIRST_USE 2 nc:r nc:m t 3 {"version":2} | HGETALL nc:r
    """,
    "eval that is wrong": """
        a EVAL | EVAL x | EVAL $INSTALL x | EVAL $INSTALL 2 a | EVAL $INSTALL -1 | EVAL $INSTALL 99999999999999999999
    """,
}

# Which of several comes first is chance in a real server: replies are compared as sets here.
UNORDERED = {
    "several patterns": """
        a SUBSCRIBE x | PSUBSCRIBE x* | PSUBSCRIBE ? | PSUBSCRIBE [w-z]
        b PUBLISH x 1 | PUBSUB NUMPAT
    """,
    "all channels": """
        a SUBSCRIBE b c a d z y x w v u t s r q p
        a PUBSUB CHANNELS | PUBSUB CHANNELS [a-d]
    """,
}
UNORDERED |= {f"channels by {glob}": f"a SUBSCRIBE {GLOB_FIELDS}\na PUBSUB CHANNELS {glob}" for glob in GLOBS}

RAW = {
    "resp2": """
        PING | GET none | SET k v | GET k | HSET h a 1 | HGETALL h | HGETALL none | HGET h none | SET k w NX | HSCAN h 0
        CLIENT GETNAME | PUBSUB NUMSUB x | PUBLISH x 1 | SUBSCRIBE | HELLO | HELLO 4 | HELLO 1 | HELLO x | GET none
    """,
    "hello": """
        HELLO 3 WHAT | GET none | HELLO 3 SETNAME | HELLO 3 AUTH x | HELLO 3 SETNAME x%20y | GET none | HELLO 3x | HELLO 03
        HELLO 3 SETNAME x AUTH bob y | CLIENT GETNAME | GET none | HELLO 3 | GET none | HELLO | hello 3 setname x
        CLIENT GETNAME | HELLO 3 SETNAME y SETNAME z | CLIENT GETNAME | HELLO 3 AUTH default x SETNAME q | CLIENT GETNAME
    """,
    "quit": "QUIT",
    "quit with arguments": "GET none | QUIT now",
}

WITH_PASSWORD = {
    "nothing without it": """
        PING | GET k | GET | NOSUCH | SUBSCRIBE x | HELLO | HELLO 3 | HELLO 3 SETNAME x | HELLO 9 | HELLO x | AUTH | INFO
        PUBSUB WHAT | CLIENT GETNAME
    """,
    "the wrong one": """
        AUTH wrong | AUTH default wrong | AUTH bob secret | AUTH a b c | HELLO 3 AUTH default wrong SETNAME x
        HELLO 3 AUTH default wrong WHAT | HELLO 3 AUTH bob secret | GET k | PING
    """,
    "auth": "AUTH secret | GET k | AUTH wrong | GET k | HELLO 3 | GET k",
    "auth with a name": "AUTH default secret | GET k",
    "hello": "HELLO 3 AUTH default secret SETNAME x | CLIENT GETNAME | GET k | HELLO 3 AUTH default wrong | GET k",
    "hello without a protocol change": "AUTH secret | HELLO | GET k",
}


def argument(text):
    return b"" if text == '""' else SCRIPTS.get(text) or unquote_to_bytes(text)


def written(commands):
    """The bytes of `command | command ...`."""
    return b"".join(command(*map(argument, one.split())) for one in commands.split(" | "))


def lines(case):
    return [line.strip() for line in case.strip().splitlines()]


# --- the two servers, behind the same two methods ----------------------------------------------------


class Simulated:
    """One server a case; the clock is the real one because the other server has no other."""

    def __init__(self, password=""):
        self.server = SimServer("simulated", time.time, "0" * 40, password)

    def open(self):
        return SimulatedConnection(self.server)


class SimulatedConnection:
    def __init__(self, server):
        self.received = bytearray()
        self.session = server.connect(self.received.extend)

    def write(self, data):
        self.session.feed(data)

    def until(self, end):
        """Everything up to `end`, which is removed; None reads to the end of the connection."""
        data = bytes(self.received)
        self.received.clear()
        if end is None:
            assert self.session.closed
            return data
        assert data.endswith(end)
        return data.removesuffix(end)

    def close(self):
        self.session.close()


class Real:
    def __init__(self, port):
        self.port = port

    def open(self):
        return RealConnection(self.port)

    def ask(self, *parts):
        connection = self.open()
        connection.write(command(*parts) + END_OF_STEP)
        reply = connection.until(END_OF_STEP_REPLY)
        connection.close()
        return reply


class RealConnection:
    def __init__(self, port):
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=10)

    def write(self, data):
        self._socket.sendall(data)

    def until(self, end):
        data = b""
        while end is None or not data.endswith(end):
            chunk = self._socket.recv(65536)
            if not chunk:
                assert end is None, f"closed after {data!r}"
                return data
            data += chunk
        return data.removesuffix(end)

    def close(self):
        """Return when the server has forgotten the session, so that the next case does not count it."""
        try:
            self._socket.sendall(command("QUIT"))
            self.until(None)
        except (BrokenPipeError, ConnectionResetError):
            pass
        self._socket.close()


@pytest.fixture(scope="module")
def port():
    with asyncio.Runner() as runner:
        server = runner.run(LocalServer.start())
        yield server.port
        runner.run(server.stop())


@pytest.fixture
def real(port):
    server = Real(port)
    server.ask("FLUSHALL")
    return server


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.live)])
def server(request):
    return Simulated() if request.param == "simulated" else request.getfixturevalue("real")


# --- running a case ------------------------------------------------------------------------------------


def transcript(server, case):
    """(step, session, bytes it got) for each step and each session that got some."""
    connections, notes = {}, []
    for line in lines(case):
        actor, commands = line.split(" ", 1)
        if actor not in connections:
            connections[actor] = opened(server)
        connections[actor].write(written(commands))
        if commands.endswith("QUIT"):
            notes.append((line, actor, connections.pop(actor).until(None)))
        for name in sorted(connections, key=lambda name: name != actor):
            connections[name].write(END_OF_STEP)
            got = connections[name].until(END_OF_STEP_REPLY)
            if got:
                notes.append((line, name, without_identity(got)))
    for connection in connections.values():
        connection.close()
    return notes


def opened(server):
    connection = server.open()
    connection.write(command("HELLO", 3) + END_OF_STEP)
    connection.until(END_OF_STEP_REPLY)
    return connection


def raw_transcript(server, case):
    """The whole stream of one connection that says everything at once, then leaves; nothing is answered after QUIT."""
    connection = server.open()
    connection.write(b"".join(map(written, lines(case))) + command("QUIT") + command("PING"))
    return without_identity(connection.until(None))


def without_identity(data):
    """HELLO tells the server's make, version and modules, and the connection's number: those may differ."""
    data = re.sub(rb"(\$6\r\nserver\r\n|\$7\r\nversion\r\n)\$\d+\r\n[^\r]*\r\n", rb"\1", data)
    data = re.sub(rb"(\$2\r\nid\r\n):\d+\r\n", rb"\1", data)
    return re.sub(rb"(\$7\r\nmodules\r\n).*?\*0\r\n", rb"\1", data, flags=re.DOTALL)


def sorted_replies(notes):
    return [(line, name, sorted(map(sorted_reply, parsed(data)), key=repr)) for line, name, data in notes]


def sorted_reply(reply):
    return sorted(reply, key=repr) if type(reply) is list else reply


def parsed(data):
    reader = hiredis.Reader()
    reader.feed(data)
    replies = []
    while (reply := reader.gets()) is not False:
        replies.append(reply)
    return replies


# --- the comparison ------------------------------------------------------------------------------------


@pytest.mark.live
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_same_bytes(case, real):
    assert transcript(Simulated(), case) == transcript(real, case)


@pytest.mark.live
@pytest.mark.parametrize("case", UNORDERED.values(), ids=UNORDERED)
def test_same_replies_in_some_order(case, real):
    assert sorted_replies(transcript(Simulated(), case)) == sorted_replies(transcript(real, case))


@pytest.mark.live
@pytest.mark.parametrize("case", RAW.values(), ids=RAW)
def test_same_bytes_from_the_first_to_the_last(case, real):
    assert raw_transcript(Simulated(), case) == raw_transcript(real, case)


@pytest.mark.live
@pytest.mark.parametrize("case", WITH_PASSWORD.values(), ids=WITH_PASSWORD)
def test_same_bytes_with_a_password(case, real):
    keeper = opened(real)
    keeper.write(command("CONFIG", "SET", "requirepass", "secret") + END_OF_STEP)
    keeper.until(END_OF_STEP_REPLY)
    try:
        assert raw_transcript(Simulated("secret"), case) == raw_transcript(real, case)
    finally:
        keeper.write(command("CONFIG", "SET", "requirepass", "") + END_OF_STEP)
        keeper.until(END_OF_STEP_REPLY)
        keeper.close()


def test_every_command_is_compared():
    texts = [*CASES.values(), *UNORDERED.values(), *RAW.values(), *WITH_PASSWORD.values()]
    compared = {word for text in texts for word in text.split()}
    assert {name.decode() for name in COMMANDS} <= compared


# --- what the protocol stands on, spelled out, on both servers -----------------------------------------


def ask(connection, *parts):
    """The reply to one command, parsed."""
    connection.write(command(*parts) + END_OF_STEP)
    return parsed(connection.until(END_OF_STEP_REPLY))[0]


def test_a_message_stands_where_its_publish_ran(server):
    step = "a SUBSCRIBE x | PUBLISH x 1 | GET none | UNSUBSCRIBE x | PUBLISH x 2"
    assert transcript(server, step)[0][2] == (
        b">3\r\n$9\r\nsubscribe\r\n$1\r\nx\r\n:1\r\n"
        b":1\r\n>3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$1\r\n1\r\n"
        b"_\r\n"
        b">3\r\n$11\r\nunsubscribe\r\n$1\r\nx\r\n:0\r\n"
        b":0\r\n"
    )


def test_the_channel_comes_before_the_pattern_and_both_count(server):
    notes = transcript(server, "a PSUBSCRIBE x* | SUBSCRIBE x\nb PUBLISH x 1")
    assert notes[1][1:] == ("b", b":2\r\n")
    assert parsed(notes[2][2]) == [[b"message", b"x", b"1"], [b"pmessage", b"x*", b"x", b"1"]]


def test_info_is_a_verbatim_string_with_the_run_id(server):
    connection = opened(server)
    connection.write(command("INFO", "server") + END_OF_STEP)
    data = connection.until(END_OF_STEP_REPLY)
    head = re.match(rb"=(\d+)\r\ntxt:# Server\r\n", data)
    assert head
    assert int(head[1]) == len(data) - len(b"=%b\r\n\r\n" % head[1])
    assert re.search(rb"\r\nrun_id:[0-9a-f]{40}\r\n", data)
    connection.close()


INFO_FIELDS = {
    "Server": ["run_id"],
    "Clients": ["connected_clients"],
    "Memory": ["used_memory"],
    "Stats": ["total_net_input_bytes", "total_net_output_bytes", "instantaneous_output_kbps"],
    "CPU": ["used_cpu_sys", "used_cpu_user"],
}


def sections(info):
    texts = info.decode().removesuffix("\r\n").split("\r\n\r\n")
    split = ((text.split("\r\n")[0].removeprefix("# "), text.split("\r\n")[1:]) for text in texts)
    return {title: dict(line.split(":", 1) for line in fields) for title, fields in split}


@pytest.mark.parametrize("arguments", [(), ("default",), ("ALL",), ("everything",), ("server", "clients", "nosuch")])
def test_info_has_the_fields_an_agent_reads(arguments, server):
    connection = opened(server)
    found = sections(ask(connection, "INFO", *arguments))
    assert "nosuch" not in arguments or list(found) == ["Server", "Clients"]
    for title, names in INFO_FIELDS.items():
        for name in names if title in found else ():
            assert name == "run_id" or float(found[title][name]) >= 0
    assert ("CPU" in found) is ("nosuch" not in arguments)
    connection.close()


def test_info_counts_traffic_and_sessions(server):
    first, second = opened(server), opened(server)
    before = sections(ask(first, "INFO"))
    ask(second, "ECHO", "x" * 10_000)
    after = sections(ask(first, "INFO"))
    for name in ("total_net_input_bytes", "total_net_output_bytes"):
        assert 10_000 <= int(after["Stats"][name]) - int(before["Stats"][name]) < 30_000
    assert after["Clients"]["connected_clients"] == "2"
    first.close()
    second.close()


@pytest.mark.live
def test_every_field_of_info_is_in_the_same_section_of_a_real_one(real):
    ours, theirs = opened(Simulated()), opened(real)
    known = sections(ask(theirs, "INFO"))
    for title, fields in sections(ask(ours, "INFO")).items():
        assert fields.keys() <= known[title].keys()
    theirs.close()


def test_a_key_ends_in_time(server):
    connection = opened(server)
    ask(connection, "SET", "k", "v", "PX", 60)
    assert 0 <= ask(connection, "PTTL", "k") <= 60
    assert ask(connection, "GET", "k") == b"v"
    ask(connection, "SET", "later", "v", "PXAT", int(time.time() * 1000) + 5000)
    assert 4000 < ask(connection, "PTTL", "later") <= 5000
    assert ask(connection, "PEXPIRE", "later", 3000) == 1
    assert 2000 < ask(connection, "PTTL", "later") <= 3000
    time.sleep(0.08)
    assert ask(connection, "GET", "k") is None
    assert ask(connection, "SET", "k", "again", "NX") == "OK"
    connection.close()


def test_incr_keeps_the_end_of_a_key(server):
    connection = opened(server)
    ask(connection, "SET", "k", 1, "PX", 50_000)
    assert ask(connection, "INCR", "k") == 2
    assert 40_000 < ask(connection, "PTTL", "k") <= 50_000
    connection.close()


def test_a_scan_finds_every_field_of_a_big_hash(server):
    connection = opened(server)
    pairs = {b"field %d" % number: b"x" * 100 for number in range(2000)}
    ask(connection, "HSET", "h", *(part for pair in pairs.items() for part in pair))
    found, cursor = {}, b"0"
    while found == {} or cursor != b"0":
        cursor, step = ask(connection, "HSCAN", "h", cursor, "MATCH", "field*", "COUNT", 500)
        found |= dict(zip(step[::2], step[1::2], strict=True))
    assert found == pairs
    connection.close()


@pytest.mark.parametrize("data", [b"*x\r\n", b"*2\r\n$4\r\nECHO\r\n$x\r\n"])
def test_what_is_no_command_ends_the_session(data, server):
    connection = server.open()
    connection.write(command("PING") + data)
    assert connection.until(None).startswith(b"+PONG\r\n-ERR Protocol error")


def test_empty_commands_are_passed_over_and_parts_are_put_together(server):
    connection = server.open()
    for part in (b"*0\r\n*1\r\n$4\r\nPI", b"NG\r", b"\n", END_OF_STEP):
        connection.write(part)
    assert connection.until(END_OF_STEP_REPLY) == b"+PONG\r\n"
    connection.close()


def test_records_are_where_the_scripts_put_them(server):
    """The cases write names out; this ties them to the names the core uses."""
    connection = opened(server)
    ask(connection, "EVAL", INSTALL_MEMBERS, 1, MEMBERS, 3, "document")
    record = b'{"version":13,"term":0,"placement":[3,"single",["b1"]]}'
    assert ask(connection, "EVAL", FIRST_USE, 2, RECORDS, MEMBERS, "topic", 3, record) == [b"record", record]
    assert ask(connection, "EVAL", INSTALL, 1, RECORDS, 1, "topic", 12, "x") == [13]
    assert ask(connection, "HGET", RECORDS, "topic") == record
    connection.close()
