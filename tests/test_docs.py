"""The documents: links between them lead somewhere, and the map of the layout is true."""

from __future__ import annotations

import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def links_of(text: str) -> list[str]:
    """The targets of the links to files of this repository, and to headings."""
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]


def anchors_of(path: Path) -> set[str]:
    """The headings of a file, as they are linked to."""
    prose = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(path: Path) -> list[str]:
    broken = []
    for link in links_of(path.read_text(encoding="utf-8")):
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(f"{path.name}: {link}")
    return broken


def test_links_between_the_documents_lead_somewhere() -> None:
    documents = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").glob("*.md")]
    assert len(documents) >= 7
    assert [link for path in documents for link in broken_links(path)] == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    path = tmp_path / "notes.md"
    path.write_text("# The `idea`, again\n\n[a](#the-idea-again) [b](#other) [c](gone.md) [d](https://example.com)\n")
    assert broken_links(path) == ["notes.md: #other", "notes.md: gone.md"]


# --- the map of the layout


def layout_of(text: str) -> dict[str, set[str]]:
    """The files that the map in architecture.md names, by package."""
    block = re.search(r"^## Layout\n+```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    files: dict[str, set[str]] = {}
    package = ""
    for line in block.group(1).splitlines():
        begun = re.match(r"  (\w+)/ ", line)
        package = begun.group(1) if begun else package
        files.setdefault(package, set()).update(re.findall(r"\b(\w+\.py)\b", line))
    return files


def test_the_map_of_the_layout_is_true() -> None:
    named = layout_of((REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8"))
    for package in ("core", "runtime", "sim", "policies", "flow", "workloads", "testbed"):
        there = {path.name for path in (REPOSITORY / "src" / "nearcast" / package).glob("*.py")} - {"__init__.py"}
        assert named[package] == there, f"docs/architecture.md, Layout: correct the files of {package}"


def test_a_map_is_read_by_package() -> None:
    text = "## Layout\n\n```\nsrc/\n  core/   pure\n    a.py  one; b.py: two\n  sim/    c.py\n```\n"
    assert layout_of(text) == {"": set(), "core": {"a.py", "b.py"}, "sim": {"c.py"}}


# --- the table of planted bugs


def planted_bugs() -> set[str]:
    """The names of the planted bugs, as words."""
    sources = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests" / "sim").glob("mutations*.py")]
    return {
        name.replace("_", " ") for text in sources for name in re.findall(r"^def (\w+)\(patch: Patch\)", text, re.M)
    }


def test_the_table_of_planted_bugs_is_complete() -> None:
    text = (REPOSITORY / "docs" / "guarantees.md").read_text(encoding="utf-8")
    table = text.split("| planted bug |", 1)[1].split("\n\n", 1)[0]
    named = re.findall(r"^\| ([^|-][^|]*) \|", table, re.MULTILINE)
    assert len(named) > 50
    assert {name.replace(",", "") for name in named} == planted_bugs()
