"""Somebody who follows a page on this machine: with terminals for what runs on, and one to type the rest."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from documented import Block, Command, NotRunnable, Page, commands_of, shape
from typer.testing import CliRunner

from nearcast.cli.app import app
from nearcast.runtime.servers import guardian
from nearcast.testing.waiting import wait_until

RUN_S = 180.0  # for anything: the machine may be busy, and Spark then takes a minute for seconds of work
STOP_S = 30.0  # Spark takes its time
NEARCAST = (sys.executable, "-P", "-m", "nearcast")
REPOSITORY = Path(__file__).resolve().parents[2]

# A part of a program awaits at its top level, as at the prompt of `python -m asyncio`.
PROGRAM = """
import ast, asyncio, inspect, sys
code = compile(open(sys.argv[1]).read(), sys.argv[1], "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
if inspect.iscoroutine(program := eval(code, {"__name__": "__main__"})):
    asyncio.run(program)
"""


def neighbouring_ports(count: int) -> list[int]:
    """Ports that nobody listens on, one after the other as `nearcast up --port` takes them."""
    for first in range(17400, 60000, count):
        with contextlib.ExitStack() as held:
            try:
                for port in range(first, first + count):
                    held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return list(range(first, first + count))
    raise AssertionError(f"no {count} free ports beside each other")


class Terminal:
    """A process that runs on but never outlives this one, and what it has printed."""

    def __init__(self, name: str, command: list[str], folder: Path, environment: dict[str, str]) -> None:
        self.name = name
        self._log = folder / f"{len(list(folder.glob('*.log')))}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        guardian().guard(self._process.pid, None)

    @property
    def printed(self) -> str:
        return self._log.read_text(encoding="utf-8")

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def until_printed(self, lines: int) -> None:
        """Until this many lines are there, or it has ended."""

        def there() -> bool:
            return self.ended or len(shape(self.printed.rpartition("\n")[0])) >= lines

        try:
            wait_until(there, within_s=RUN_S)
        except AssertionError:
            pytest.fail(f"{self.name}: printed only\n{self.printed}")
        self.must_be_well()

    def until_ended(self) -> None:
        self._process.wait(RUN_S)
        self.must_be_well()

    def stop(self) -> None:
        """As Ctrl-C does."""
        if not self.ended:
            self._process.send_signal(signal.SIGINT)

    def wait(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        self._process.kill()  # who did not end by itself: `must_be_well` tells it
        self._process.wait()
        guardian().release(self._process.pid)

    def must_be_well(self) -> None:
        assert self._process.poll() in (None, 0), f"{self.name}: ended with {self._process.returncode}\n{self.printed}"
        assert "Traceback" not in self.printed, f"{self.name}:\n{self.printed}"


class Reader:
    """Runs a page: first what runs until it is stopped, each in a terminal, then all the rest in the page's order."""

    def __init__(self, folder: Path, environment: dict[str, str] | None = None) -> None:
        self.folder = folder
        self.environment = {**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})}
        self.services: list[Terminal] = []
        self.programs: list[Terminal] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for terminals in (self.programs, self.services):
            for terminal in terminals:
                terminal.stop()
            for terminal in terminals:
                terminal.wait()
        if kind is None:
            for service in self.services:
                service.must_be_well()

    def open_terminals(self, page: Page) -> None:
        """Start what runs until it is stopped, and see it print what the page shows."""
        started = [(command, self.serve(command)) for command in page.commands if command.runs_until_stopped]
        for command, terminal in started:
            terminal.until_printed(len(shape(command.output)))
            assert not terminal.ended, f"{command.text}: ended\n{terminal.printed}"
            if command.output:
                assert shape(terminal.printed) == shape(command.output), command.text

    def serve(self, command: Command) -> Terminal:
        words = [*NEARCAST, *command.words[1:]]
        self.services.append(Terminal(command.text, words, self.folder, self.environment))
        return self.services[-1]

    def follow(self, page: Page) -> None:
        for block in page.blocks:
            match block.language:
                case "console":
                    for command in commands_of(block):
                        self.type(command)
                case "python":
                    self.play(block)
                case "sql":
                    self.write_down(block)

    def type(self, command: Command) -> None:
        """Run a command to its end: it must do what the page shows, or end well if that shows nothing."""
        if command.runs_until_stopped:
            return  # it runs since `open_terminals`
        first, *rest = command.words
        match first:
            case "export":
                self.environment.update(word.split("=", 1) for word in rest)
            case "make":
                self._see_recipes(command, rest)
            case "nearcast":
                self._run(command, rest)
            case _:
                raise NotRunnable(f"line {command.line}: no test knows how to run {first}")

    def _see_recipes(self, command: Command, targets: list[str]) -> None:
        """They take minutes, and one of them runs this test: it is enough that there are recipes for all targets."""
        dry = ["make", "--dry-run", *targets]
        done = subprocess.run(dry, cwd=REPOSITORY, capture_output=True, text=True, timeout=RUN_S, check=False)
        assert done.returncode == 0, f"line {command.line}: {command.text}\n{done.stderr}"

    def _run(self, command: Command, arguments: list[str]) -> None:
        """In this process, which has imported already what a new one would take a second for."""
        with contextlib.chdir(self.folder):
            done = CliRunner().invoke(app, arguments, env=self.environment)
        where = f"line {command.line}: {command.text}\n{done.output}"
        assert (done.exit_code != 0) == command.output.startswith("error: "), where
        assert not command.output or shape(done.output) == shape(command.output), where

    def play(self, block: Block) -> None:
        """A whole program must end; a part of one must end, or print something and go on until the page ends."""
        path = self.folder / f"line_{block.line}.py"
        path.write_text(block.text, encoding="utf-8")
        command = [sys.executable, "-P", "-c", PROGRAM, str(path)]
        program = Terminal(f"the program of line {block.line}", command, self.folder, self.environment)
        self.programs.append(program)
        if "asyncio.run(" in block.text:
            program.until_ended()
        else:
            program.until_printed(1)

    def write_down(self, block: Block) -> None:
        name = re.match(r"CREATE (?:OR REPLACE )?CHANNEL (\w+)", block.text)
        if name is None:
            raise NotRunnable(f"line {block.line}: SQL that does not begin with CREATE [OR REPLACE] CHANNEL")
        (self.folder / f"{name[1]}.sql").write_text(block.text, encoding="utf-8")
