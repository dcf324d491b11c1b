"""The guardian: a small process that ends our servers when the program that started them is gone.

A program that crashes or is killed with SIGKILL cannot clean up after itself. So each program that starts
servers also starts one guardian, holds a pipe to it, and writes a line for each server it starts and each
that has ended:

    ["guard", PID, DIRECTORY]   kill this server if I die, and remove the directory (null: remove nothing)
    ["release", PID]            this server has ended
    ["end"]                     I am leaving: act as if I had died

When the pipe closes, the program is dead, however it died, and the guardian kills what is left. What was
written before is still in the pipe, so nothing is missed. This works on every POSIX system and from any
thread, unlike Linux's PR_SET_PDEATHSIG, which fires when the forking *thread* ends.

This file contains both ends of the pipe. The guardian runs it as a script, without site-packages, to start fast.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

# A forked copy of the program (multiprocessing) holds the pipe open after the program's death. Then the guardian
# notices only by its changed parent, and this is how often it looks.
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
        """The server has ended; its pid may soon belong to another process."""
        if pid in self._guarded:
            del self._guarded[pid]
            self._tell("release", pid)

    def _spawn(self) -> subprocess.Popen[bytes]:
        script = str(Path(__file__).resolve())
        # Its own session, because a Ctrl-C at the terminal must not reach it. No inherited output, because a reader of
        # the program's output must not wait for the guardian.
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
            # The guardian was killed: start another, and tell it everything.
            with self._process:  # closes our end of its pipe, and waits
                self._process = self._spawn()
            for pid, directory in self._guarded.items():
                self._write("guard", pid, directory)

    def _write(self, *line: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(line).encode() + b"\n")

    def _end(self) -> None:
        if os.getpid() != self._owner_pid:
            return  # this is a forked copy that ends; the owner still runs
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
    """What the guardian does: note what is guarded until the parent is gone, then kill it."""
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
    """Apply the lines; False when the program says that it leaves."""
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
        # The group, not the process: if the pid is in use again, it is probably not a group leader's.
        os.killpg(pid, signal.SIGKILL)
    if directory is not None:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    _watch(int(sys.argv[1]))
