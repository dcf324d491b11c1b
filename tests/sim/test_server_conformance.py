"""The simulated server against a real one: the same commands must give the same bytes.

The cases are in `server_cases.toml`. A case is a text: one step a line, `session command | command ...`; the commands
of a step are written at once. Arguments are percent-decoded, `""` is the empty one, `$INSTALL` and the like stand for
our scripts. After each step the bytes that every session of the case got are noted; the notes of both servers must be
equal. Sessions have sent HELLO 3; in the tables `whole_stream...` there is one session, which has sent nothing.

The end of a step's output is found by an ECHO on every session, not by waiting: whatever a server wrote to a session
before stands before the answer.
"""

import asyncio
import re
import socket
import time
import tomllib
from pathlib import Path
from urllib.parse import unquote_to_bytes

import hiredis
import pytest

from nearcast.core.model.names import FIRST_USES, MEMBERS, RECORDS, TOTALS
from nearcast.core.wire.link import command
from nearcast.core.wire.scripts import (
    APPEND,
    CLAIM,
    COMMIT,
    CONFIRM,
    END_UNUSED,
    FIRST_USE,
    INSTALL,
    INSTALL_MEMBERS,
    KEEP,
    PAGE,
    READ,
    TAKE,
)
from nearcast.runtime.servers import LocalServer
from nearcast.sim.valkey.commands import COMMANDS
from nearcast.sim.valkey.server import SimServer

SCRIPTS = {
    "$INSTALL": INSTALL,
    "$MEMBERS": INSTALL_MEMBERS,
    "$FIRST_USE": FIRST_USE,
    "$CLAIM": CLAIM,
    "$KEEP": KEEP,
    "$END_UNUSED": END_UNUSED,
    "$READ": READ,
    "$APPEND": APPEND,
    "$COMMIT": COMMIT,
    "$CONFIRM": CONFIRM,
    "$PAGE": PAGE,
    "$TAKE": TAKE,
}
END_OF_STEP = command("ECHO", "end of step")
END_OF_STEP_REPLY = b"$11\r\nend of step\r\n"

CASES = tomllib.loads(Path(__file__).with_name("server_cases.toml").read_text(encoding="utf-8"))
GLOBBED = CASES["globs"]["names"].split()
for glob in CASES["globs"]["patterns"].split():
    CASES["same_bytes"][f"fields that match {glob}"] = f"""
        a HSET h {" 1 ".join(GLOBBED)} 1
        a HSCAN h 0 MATCH {glob}
    """
    CASES["same_replies_in_some_order"][f"channels that match {glob}"] = f"""
        a SUBSCRIBE {" ".join(GLOBBED)}
        a PUBSUB CHANNELS {glob}
    """


def each_of(table):
    return pytest.mark.parametrize("case", CASES[table].values(), ids=CASES[table])


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
@each_of("same_bytes")
def test_same_bytes(case, real):
    assert transcript(Simulated(), case) == transcript(real, case)


@pytest.mark.live
@each_of("same_replies_in_some_order")
def test_same_replies_in_some_order(case, real):
    assert sorted_replies(transcript(Simulated(), case)) == sorted_replies(transcript(real, case))


@pytest.mark.live
@each_of("whole_stream")
def test_same_bytes_from_the_first_to_the_last(case, real):
    assert raw_transcript(Simulated(), case) == raw_transcript(real, case)


@pytest.mark.live
@each_of("whole_stream_with_password")
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
    compared = {word for table in CASES.values() for case in table.values() for word in case.split()}
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
    if "nosuch" in arguments:
        assert list(found) == ["Server", "Clients"]
    else:
        assert set(INFO_FIELDS) <= set(found)
    for title, names in INFO_FIELDS.items():
        for name in names if title in found else ():
            assert re.fullmatch(r"[0-9a-f]{40}" if name == "run_id" else r"[0-9.]+", found[title][name])
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
    ask(connection, "SET", "k", "v", "PX", 5000)
    assert 4000 < ask(connection, "PTTL", "k") <= 5000
    ask(connection, "SET", "k", "v", "PXAT", int(time.time() * 1000) + 9000)
    assert 8000 < ask(connection, "PTTL", "k") <= 9000
    assert ask(connection, "PEXPIRE", "k", 50) == 1
    time.sleep(0.06)  # longer than the key lives
    assert ask(connection, "GET", "k") is None
    assert ask(connection, "SET", "k", "again", "NX") == b"OK"
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


def test_a_server_numbers_records_by_its_clock(server):
    connection = opened(server)
    before_ms = int(time.time() * 1000)
    ids = [ask(connection, "XADD", "s", "MAXLEN", "~", 100, "*", "n", number) for number in range(50)]
    found = [tuple(map(int, record_id.split(b"-"))) for record_id in ids]
    assert found == sorted(set(found))
    assert before_ms <= found[0][0] <= found[-1][0] <= int(time.time() * 1000)
    assert ask(connection, "XADD", "s", f"{2**60}-5", "n", "ahead of the clock") == b"%d-5" % 2**60
    assert ask(connection, "XADD", "s", "*", "n", "after it") == b"%d-6" % 2**60
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
    ask(connection, "EVAL", INSTALL_MEMBERS, 1, MEMBERS, 3, "document", 0)
    record = b'{"version":13,"term":1,"placement":[3,"single",["b1"]]}'
    assert ask(connection, "EVAL", FIRST_USE, 1, FIRST_USES, 3, "topic") == [b"found", b"3"]
    assert ask(connection, "EVAL", READ, 0, "topic") == [b"3"]
    assert ask(connection, "EVAL", INSTALL, 3, RECORDS, FIRST_USES, TOTALS, 1, "topic", 13, record) == [13]
    assert ask(connection, "EVAL", READ, 0, "topic") == [record]
    assert ask(connection, "EVAL", FIRST_USE, 1, FIRST_USES, 3, "topic") == [b"found", record]
    connection.close()
