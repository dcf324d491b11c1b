"""The README, run as it is written: every program, every command and what it prints."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest
from documented import Page, named_commands, unknown_word
from reader import Reader

REPOSITORY = Path(__file__).resolve().parents[2]
README = REPOSITORY / "README.md"


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


@pytest.mark.live
def test_the_readme_does_what_it_says(tmp_path: Path) -> None:
    here = {f"740{number}": str(port) for number, port in enumerate(neighbouring_ports(4))}
    here['host="any.server.of.the.cluster"'] = f'host="127.0.0.1", port={here["7401"]}'
    page = Page.read(README, here)
    with Reader(tmp_path) as reader:
        reader.open_terminals(page)
        reader.follow(page)
        hello, drop_in = reader.programs
        assert hello.printed == "hello\n"
        drop_in.until_printed(2)
        assert "'data': b'hello'" in drop_in.printed.splitlines()[1]


@pytest.mark.parametrize("page", ["README.md", "docs/data.md"])
def test_commands_that_a_page_names_are_there(page: str) -> None:
    named = named_commands((REPOSITORY / page).read_text(encoding="utf-8"))
    assert len(named) > 3
    targets = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    for command in named:
        program, first, *_ = command.split()
        assert f"\n{first}:" in targets if program == "make" else not unknown_word(command), command
