"""Other addresses than the announced ones, from a file that comes and changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearcast.agent.detours import Detours


def test_without_a_file_addresses_are_as_announced() -> None:
    detours = Detours(None)
    detours.look()
    assert detours.resolve("udp://a:1") == "udp://a:1"


def test_nobody_is_anywhere_before_the_file_is_there_and_then_it_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "detours.json"
    detours = Detours(path)
    detours.look()
    with pytest.raises(LookupError, match="not there yet"):
        detours.resolve("udp://a:1")
    path.write_text('{"udp://a:1": "udp://b:2"}')
    detours.look()
    assert detours.resolve("udp://a:1") == "udp://b:2"
    assert detours.resolve("udp://c:3") == "udp://c:3"
    path.write_text('{"udp://a:1": "udp://longer:4"}')
    detours.look()
    assert detours.resolve("udp://a:1") == "udp://longer:4"


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 1}', "\udcff"])
def test_a_file_that_is_no_table_changes_nothing(tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "detours.json"
    path.write_text('{"udp://a:1": "udp://b:2"}')
    detours = Detours(path)
    detours.look()
    path.write_text(text, errors="surrogateescape")
    detours.look()
    detours.look()
    assert detours.resolve("udp://a:1") == "udp://b:2"
    assert len(caplog.records) == 1, "it is said once"
