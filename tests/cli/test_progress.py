"""What people see at a terminal while many topics come; programs see nothing of it."""

from __future__ import annotations

import sys

import pytest

from nearcast.cli import shared
from nearcast.cli.shared import Counting


@pytest.mark.parametrize(
    ("terminal", "patience_s", "seen"),
    [
        (True, -1.0, "\r\x1b[K1,000 topics ...\r\x1b[K2,000 topics ...\r\x1b[K"),
        (True, 60.0, ""),
        (False, -1.0, ""),
    ],
)
def test_who_waits_long_at_a_terminal_sees_it_grow(
    terminal: bool,
    patience_s: float,
    seen: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setattr(shared, "PATIENCE_S", patience_s)
    with Counting("topics") as count:
        count.tell(1000)
        count.tell(2000)
    written = capsys.readouterr()
    assert (written.out, written.err) == ("", seen)
