"""The documents: links between them lead somewhere, and what architecture.md says of the code is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "src" / "nearcast"
ARCHITECTURE = REPOSITORY / "docs" / "architecture.md"

FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


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


def the_map(text: str) -> dict[str, str]:
    """What the map in architecture.md says of each package, by its path below src/nearcast."""
    block = re.search(r"^## Layout\n.*?^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert block is not None
    found, outer, names = dict[str, str](), "", list[str]()
    for line in block.group(1).split("\ntests/")[0].splitlines()[1:]:
        begun = re.match(r"( {2,4})((?:\w+/ ?)+)(.*)", line)
        if begun is None:
            found |= {name: found[name] + " " + line for name in names}
            continue
        indent, packages, words = begun.groups()
        outer = outer if len(indent) == 4 else packages.split()[0]
        names = [((outer if len(indent) == 4 else "") + name).rstrip("/") for name in packages.split()]
        found |= dict.fromkeys(names, words)
    return found


def unnamed_modules(said: dict[str, str], source: Path) -> list[str]:
    """The modules that the map leaves out; a package of which it says "one module per" needs no list."""
    return [
        f"{package}/{path.stem}"
        for package, words in said.items()
        for path in sorted((source / package).glob("*.py"))
        if "one module per" not in words and path.stem not in {"__init__", *re.findall(r"\w+", words)}
    ]


def test_the_map_of_the_layout_is_true() -> None:
    there = {str(path.parent.relative_to(SOURCE)) for path in SOURCE.rglob("__init__.py")} - {"."}
    said = the_map(ARCHITECTURE.read_text(encoding="utf-8"))
    assert said.keys() == there, "docs/architecture.md, Layout: correct the packages"
    assert unnamed_modules(said, SOURCE) == [], "docs/architecture.md, Layout: add these modules"


def test_a_map_is_read_by_package(tmp_path: Path) -> None:
    block = "src/\n  core/   pure\n    a/  one,\n       two\n    b/ c/  two\n  sim/  x\ntests/\n"
    said = the_map(f"## Layout\n\nWords.\n\n```\n{block}```\n")
    assert said.keys() == {"core", "core/a", "core/b", "core/c", "sim"}
    for module in ("a/__init__", "a/two", "a/three", "c/one"):
        path = tmp_path / "core" / f"{module}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert unnamed_modules(said, tmp_path) == ["core/a/three", "core/c/one"]
    assert unnamed_modules({"core/c": "one module per letter"}, tmp_path) == []


# --- the three paths and the glossary


def defined_names(texts: Iterable[str]) -> set[str]:
    """All classes, functions and constants, and `Class.method` for each method."""
    found = set[str]()
    for tree in map(ast.parse, texts):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, FUNCTION)}
            if isinstance(node, ast.ClassDef | FUNCTION):
                found.add(node.name)
            elif isinstance(node, ast.Assign):
                found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return found


def names_not_there(section: str, source: Path) -> list[str]:
    """The files, and the classes, methods and private functions, that are not in the files the section names."""
    quoted = re.findall(r"`([^`]+)`", section)
    files = [source / name for name in quoted if name.endswith(".py")]
    missing = [str(path.relative_to(source)) for path in files if not path.is_file()]
    there = defined_names(path.read_text(encoding="utf-8") for path in files if path.is_file())
    names = [name for name in quoted if re.fullmatch(r"[A-Z]\w*(\.\w+)?|_\w+", name)]
    return missing + [name for name in names if name not in there]


def test_the_paths_through_the_code_name_what_is_there() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8").split("## Three paths", 1)[1].split("## Glossary", 1)[0]
    paths = text.split("\n### ")[1:]
    assert len(paths) == 3
    assert [name for path in paths for name in names_not_there(path, SOURCE)] == []


def test_the_glossary_names_files_that_are_there() -> None:
    text = ARCHITECTURE.read_text(encoding="utf-8").split("## Glossary", 1)[1].split("## Dependencies", 1)[0]
    files = re.findall(r"`([\w/]+\.py)`", text)
    assert len(files) > 50
    assert [name for name in files if not (SOURCE / name).is_file()] == []


def test_a_name_that_is_not_there_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("LIMIT = 1\nclass A:\n    def b(self): ...\ndef _c(): ...\n")
    section = "`a.py`: `A`, `A.b`, `_c`, `LIMIT`, `plain words`, `A.gone`, `B`, `_d`, `b.py`"
    assert names_not_there(section, tmp_path) == ["b.py", "A.gone", "B", "_d"]


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
