"""The README, run as it is written: every program, every command and what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest
from documented import Page
from reader import REPOSITORY, Reader, neighbouring_ports

README = REPOSITORY / "README.md"


@pytest.mark.live
def test_the_readme_does_what_it_says(tmp_path: Path) -> None:
    here = {f"740{number}": str(port) for number, port in enumerate(neighbouring_ports(4))}
    here['host="any.server.of.the.cluster"'] = f'host="127.0.0.1", port={here["7401"]}'
    page = Page.read(README, here)
    with Reader(tmp_path) as reader:
        reader.open_terminals(page)
        reader.follow(page)
        hello, drop_in, limited, kept = reader.programs
        assert hello.printed == "hello\n"
        drop_in.until_printed(2)
        assert "'data': b'hello'" in drop_in.printed.splitlines()[1]
        kept.until_ended()
        assert kept.printed == "".join(f"order.berlin order {number}\n" for number in range(3))
        limited.until_ended()
        assert limited.printed.split() == ["connected", "closed"]
