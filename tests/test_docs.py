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


# --- the files of tests


def named_tests(text: str) -> list[str]:
    """The files below tests/ that a document names; a name without a folder means the folder of the one before it."""
    found, folder = list[str](), "tests/"
    for path, name in re.findall(r"\b(tests/(?:\w+/)*)?(test_\w+\.py)", text):
        folder = path or folder
        found.append(folder + name)
    return found


def test_the_tests_that_documents_name_are_there() -> None:
    documents = [*REPOSITORY.glob("*.md"), REPOSITORY / "Makefile", *(REPOSITORY / "docs").glob("*.md")]
    named = [(path.name, test) for path in documents for test in named_tests(path.read_text(encoding="utf-8"))]
    assert len(named) >= 20
    assert [(document, test) for document, test in named if not (REPOSITORY / test).is_file()] == []


def test_tests_are_read_with_their_folders() -> None:
    text = "`tests/core/test_a.py` and `test_b.py`, `tests/sim`, [c](../tests/test_c.py)"
    assert named_tests(text) == ["tests/core/test_a.py", "tests/core/test_b.py", "tests/test_c.py"]
    assert named_tests("test_d.py says so") == ["tests/test_d.py"]


# --- the map of the layout


def packages_named(text: str) -> set[str]:
    """The packages that the map in architecture.md names, as paths below src/nearcast."""
    block = re.search(r"^## Layout\n.*?^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    found, outer = set[str](), ""
    for line in block.group(1).split("\ntests/")[0].splitlines():
        begun = re.match(r"( {2,4})((?:\w+/ ?)+)", line)
        if begun is None:
            continue
        names = begun.group(2).split()
        outer = outer if len(begun.group(1)) == 4 else names[0]
        found |= {outer + name if len(begun.group(1)) == 4 else name for name in names}
    return {name.rstrip("/") for name in found}


def test_the_map_of_the_layout_is_true() -> None:
    source = REPOSITORY / "src" / "nearcast"
    there = {str(path.parent.relative_to(source)) for path in source.rglob("__init__.py")} - {"."}
    named = packages_named((REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8"))
    assert named == there, "docs/architecture.md, Layout: correct the packages"


def test_a_map_is_read_by_package() -> None:
    text = "## Layout\n\nWords.\n\n```\nsrc/\n  core/   pure\n    a/  one\n    b/ c/  two\n  sim/  x\ntests/\n```\n"
    assert packages_named(text) == {"core", "core/a", "core/b", "core/c", "sim"}


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
