"""A test for style: import rules, sizes, names, leftovers and dead modules.

Every rule is a function from source text to a list of problems. Each is tested twice: on this repository,
where it must find nothing, and on a planted violation, where it must find exactly that.
"""

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "src"

MAX_FILE_LINES = 450
MAX_FUNCTION_LINES = 70

PURE_PACKAGES = ("nearcast.core", "nearcast.coordinates", "nearcast.policies")
IMPURE_IMPORTS = (
    "asyncio",
    "socket",
    "time",
    "nearcast.runtime",
    "nearcast.sim",
    "nearcast.cli",
    "nearcast.testing",
)
PYSPARK_PACKAGES = ("nearcast.pipeline", "nearcast.cli")

FORBIDDEN_FILE_NAMES = {"utils.py", "helpers.py", "common.py", "manager.py"}
LEFTOVER = re.compile(
    r"\b(?:TODO|FIXME|XXX|HACK|NotImplementedError|xfail|importorskip|pytest\.(?:mark\.)?skip(?:if)?)\b"
)
# Written in pieces so that this file does not match itself.
REGISTRY_HOST = re.compile("python" + r"hosted|\bpypi" + r"\.org\b")
DEVELOPER_PATH = re.compile(r"(?<![\w.}])/(?:" + r"work|root|(?:home|Users)/[\w.-]+)/")

BUILT_FOLDERS = {"__pycache__", "build", "dist", "htmlcov", "node_modules"}
HIDDEN_FOLDERS_WE_WROTE = {".ci", ".github"}


@dataclass(frozen=True)
class Module:
    """One Python file, known by its dotted name."""

    name: str
    text: str
    is_package: bool = False

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, filename=self.name)

    @property
    def package(self) -> str:
        return self.name if self.is_package else self.name.rpartition(".")[0]


def module_at(path: Path, root: Path) -> Module:
    parts = path.relative_to(root).with_suffix("").parts
    is_package = parts[-1] == "__init__"
    name = ".".join(parts[:-1] if is_package else parts)
    return Module(name, path.read_text(encoding="utf-8"), is_package)


def modules_under(folder: Path, root: Path) -> list[Module]:
    return [module_at(path, root) for path in written_files(folder) if path.suffix == ".py"]


def written_files(folder: Path) -> Iterator[Path]:
    """The files people wrote: not environments, caches or builds."""
    for path in sorted(folder.iterdir()):
        if not path.is_dir():
            yield path
        elif is_written_folder(path.name):
            yield from written_files(path)


def is_written_folder(name: str) -> bool:
    if name.startswith("."):
        return name in HIDDEN_FOLDERS_WE_WROTE
    return name not in BUILT_FOLDERS and not name.endswith(".egg-info")


def text_of(path: Path) -> str:
    """The file's text; a binary file has none."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def is_within(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


# --- imports --------------------------------------------------------------------------------------


def imported_names(module: Module) -> Iterator[tuple[int, str]]:
    """Line and absolute dotted name of each import; `from a import b` gives `a.b`, module or not."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = import_origin(node, module.package)
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def import_origin(node: ast.ImportFrom, package: str) -> str:
    if node.level == 0:
        return node.module or ""
    parents = package.split(".")
    base = parents[: len(parents) - (node.level - 1)]
    return ".".join([*base, node.module] if node.module else base)


def impure_imports(module: Module) -> list[str]:
    if not is_within(module.name, PURE_PACKAGES):
        return []
    return [
        f"{module.name}:{line}: a pure module must not import {name}"
        for line, name in imported_names(module)
        if is_within(name, IMPURE_IMPORTS)
    ]


def global_dice(module: Module) -> list[str]:
    """Uses of the module `random` other than the class `random.Random`, in pure modules."""
    if not is_within(module.name, PURE_PACKAGES):
        return []
    used = [(line, name) for line, name in imported_names(module) if is_within(name, ["random"]) and name != "random"]
    used += attributes_used(module, aliases_of(module, "random"))
    return [
        f"{module.name}:{line}: a pure module may use random.Random only, not {name}"
        for line, name in used
        if name != "random.Random"
    ]


def aliases_of(module: Module, imported: str) -> set[str]:
    imports = (node for node in ast.walk(module.tree) if isinstance(node, ast.Import))
    return {alias.asname or alias.name for node in imports for alias in node.names if alias.name == imported}


def attributes_used(module: Module, aliases: set[str]) -> list[tuple[int, str]]:
    return [
        (node.lineno, f"random.{node.attr}")
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in aliases
    ]


def misplaced_pyspark(module: Module) -> list[str]:
    if is_within(module.name, PYSPARK_PACKAGES):
        return []
    return [
        f"{module.name}:{line}: only {' and '.join(PYSPARK_PACKAGES)} may import pyspark"
        for line, name in imported_names(module)
        if is_within(name, ["pyspark"])
    ]


# --- sizes and docstrings -------------------------------------------------------------------------


def long_file(module: Module) -> list[str]:
    lines = len(module.text.splitlines())
    return [f"{module.name}: {lines} lines, at most {MAX_FILE_LINES}"] if lines > MAX_FILE_LINES else []


def long_functions(module: Module) -> list[str]:
    functions = (n for n in ast.walk(module.tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    sized = ((function, (function.end_lineno or 0) - function.lineno + 1) for function in functions)
    return [
        f"{module.name}:{function.lineno}: {function.name} has {lines} lines, at most {MAX_FUNCTION_LINES}"
        for function, lines in sized
        if lines > MAX_FUNCTION_LINES
    ]


def missing_docstring(module: Module) -> list[str]:
    return [] if ast.get_docstring(module.tree) else [f"{module.name}: has no docstring"]


# --- sleeps in tests ------------------------------------------------------------------------------


def unexplained_sleeps(module: Module) -> list[str]:
    """Calls of `sleep` whose line has no comment; in a function with a docstring, that says why."""
    lines = module.text.splitlines()
    functions = [n for n in ast.walk(module.tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    told = {id(node) for function in functions if ast.get_docstring(function) for node in ast.walk(function)}
    return [
        f"{module.name}:{node.lineno}: say why it sleeps, or wait with nearcast.testing.waiting"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("asyncio.sleep", "time.sleep", "sleep")
        if "#" not in lines[node.lineno - 1] and id(node) not in told
    ]


# --- texts and file names -------------------------------------------------------------------------


def lines_matching(pattern: re.Pattern[str], path: Path) -> list[str]:
    return [
        f"{path}:{number}: {match.group()}"
        for number, line in enumerate(text_of(path).splitlines(), start=1)
        for match in pattern.finditer(line)
    ]


def forbidden_names(paths: Iterable[Path]) -> list[str]:
    return [f"{path}: name the file after what it holds" for path in paths if path.name in FORBIDDEN_FILE_NAMES]


# --- dead modules ---------------------------------------------------------------------------------


def dead_modules(modules: list[Module], users: list[Module], entry_points: set[str]) -> list[str]:
    """Modules that no other module or test imports and no entry point starts."""
    used_by = {user.name: names_used(user) for user in [*modules, *users]}
    return [
        f"{module.name}: nothing imports it"
        for module in modules
        if not is_only_docstring(module)
        and not module.name.endswith(".__main__")
        and module.name not in entry_points
        and not any(module.name in names for user, names in used_by.items() if user != module.name)
    ]


def is_only_docstring(module: Module) -> bool:
    """A package file without code cannot be dead code."""
    return module.is_package and all(isinstance(node, ast.Expr) for node in module.tree.body)


def names_used(module: Module) -> set[str]:
    """All dotted names the module imports or names in a string to import later, with their parents."""
    names = {name for _, name in imported_names(module)} | names_in_strings(module)
    return {parent for name in names for parent in with_parents(name)}


def names_in_strings(module: Module) -> set[str]:
    strings = (n.value for n in ast.walk(module.tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
    return {s.partition(":")[0] for s in strings if re.fullmatch(r"nearcast(\.\w+)+(:\w+)?", s)}


def with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def declared_entry_points(pyproject: str) -> set[str]:
    project = tomllib.loads(pyproject)["project"]
    return {target.partition(":")[0] for target in project.get("scripts", {}).values()}


# --- this repository keeps the rules --------------------------------------------------------------

MODULE_RULES = [
    impure_imports,
    global_dice,
    misplaced_pyspark,
    long_file,
    long_functions,
    missing_docstring,
]


def expect_none(problems: Iterable[str]) -> None:
    """Fail with all problems, one a line; pytest would cut a long list short."""
    found = list(problems)
    if found:
        pytest.fail("\n".join(found), pytrace=False)


def code_files() -> list[Path]:
    return [*written_files(SOURCE), *written_files(REPOSITORY / "tests")]


@pytest.mark.parametrize("rule", MODULE_RULES)
def test_every_module_keeps(rule):
    modules = modules_under(SOURCE, SOURCE)
    assert modules
    expect_none(problem for module in modules for problem in rule(module))


def test_the_rules_name_packages_that_are_there():
    named = {*PURE_PACKAGES, *PYSPARK_PACKAGES, *(name for name in IMPURE_IMPORTS if is_within(name, ["nearcast"]))}
    assert named <= {module.name for module in modules_under(SOURCE, SOURCE) if module.is_package}


def test_every_sleep_of_a_test_has_a_reason():
    expect_none(
        problem for module in modules_under(REPOSITORY / "tests", REPOSITORY) for problem in unexplained_sleeps(module)
    )


def test_nothing_was_left_over():
    files = [path for path in code_files() if path != Path(__file__).resolve()]
    expect_none(problem for path in files for problem in lines_matching(LEFTOVER, path))


def test_no_file_has_a_name_that_says_nothing():
    expect_none(forbidden_names(written_files(REPOSITORY)))


@pytest.mark.parametrize("pattern", [REGISTRY_HOST, DEVELOPER_PATH], ids=["registry host", "developer path"])
def test_no_file_names_a(pattern):
    files = list(written_files(REPOSITORY))
    assert REPOSITORY / "pyproject.toml" in files
    expect_none(problem for path in files for problem in lines_matching(pattern, path))


def test_no_module_is_dead():
    users = [module for folder in ("tests", "examples") for module in modules_under(REPOSITORY / folder, REPOSITORY)]
    entry_points = declared_entry_points((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    expect_none(dead_modules(modules_under(SOURCE, SOURCE), users, entry_points))


# --- planted violations: each rule can fail -------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("nearcast.core.client", "import asyncio"),
        ("nearcast.core.client", "import asyncio.events as events"),
        ("nearcast.core.client", "from time import monotonic"),
        ("nearcast.policies.dynamoth.policy", "import socket"),
        ("nearcast.policies.multistage", "from nearcast.runtime.client import Client"),
        ("nearcast.core.client", "from nearcast import sim"),
        ("nearcast.core.client", "from ..testing import cluster"),
        ("nearcast.policies.catalog", "from .. import cli"),
        ("nearcast.policies", "def predict():\n    import time"),
    ],
)
def test_an_impure_import_is_found(name, line):
    assert len(impure_imports(Module(name, line))) == 1


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("nearcast.runtime.client", "import asyncio"),
        ("nearcast.corest", "import time"),
        ("nearcast.core.client", "import timeit"),
        ("nearcast.core.client", "from . import sim"),
        ("nearcast.core.client", "from nearcast.core.time import Timer"),
    ],
)
def test_a_lawful_import_is_not_found(name, line):
    assert impure_imports(Module(name, line)) == []


def test_problems_fail_a_test_and_are_all_shown():
    with pytest.raises(pytest.fail.Exception, match="first\nsecond"):
        expect_none(["first", "second"])


def test_a_relative_import_in_a_package_file_starts_at_the_package():
    assert [name for _, name in imported_names(Module("nearcast.core", "from .sim import x", is_package=True))] == [
        "nearcast.core.sim.x"
    ]


@pytest.mark.parametrize(
    "text",
    [
        "import random\nrandom.shuffle([])",
        "import random as dice\nroll = dice.random",
        "from random import choice",
        "from random import *",
    ],
)
def test_global_dice_are_found(text):
    assert len(global_dice(Module("nearcast.policies.dynamoth", text))) == 1


@pytest.mark.parametrize(
    "text",
    [
        "import random\nrng = random.Random(7)\nrng.shuffle([])",
        "from random import Random",
        "def f(random):\n    return random.choice([])",
    ],
)
def test_seeded_dice_are_lawful(text):
    assert global_dice(Module("nearcast.policies.dynamoth", text)) == []


def test_misplaced_pyspark_is_found():
    text = "def session():\n    from pyspark.sql import SparkSession"
    assert len(misplaced_pyspark(Module("nearcast.core.plan", text))) == 1
    assert len(misplaced_pyspark(Module("nearcast.gateway.session", text))) == 1
    assert misplaced_pyspark(Module("nearcast.pipeline.session", text)) == []
    assert misplaced_pyspark(Module("nearcast.cli.data", text)) == []


def test_a_long_file_is_found():
    assert long_file(Module("m", "x = 1\n" * MAX_FILE_LINES)) == []
    assert len(long_file(Module("m", "x = 1\n" * (MAX_FILE_LINES + 1)))) == 1


@pytest.mark.parametrize("header", ["def f():\n", "async def f():\n", "class C:\n  def f(self):\n"])
def test_a_long_function_is_found(header):
    longest = header + "    x = 1\n" * (MAX_FUNCTION_LINES - 1)
    assert long_functions(Module("m", longest)) == []
    assert len(long_functions(Module("m", longest + "    x = 1\n"))) == 1


def test_a_missing_docstring_is_found():
    assert len(missing_docstring(Module("m", "x = 1"))) == 1
    assert missing_docstring(Module("m", '"""What it holds."""\nx = 1')) == []


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("await asyncio.sleep(1)", 1),
        ("time.sleep(1)", 1),
        ("await asyncio.sleep(1)  # longer than a lease", 0),
        ("await pause.sleep(1)", 0),
    ],
)
def test_a_sleep_without_a_reason_is_found(line, found):
    assert len(unexplained_sleeps(Module("m", f"async def f():\n    {line}\n"))) == found
    assert unexplained_sleeps(Module("m", f"async def f():\n    '''Why.'''\n    {line}\n")) == []


@pytest.mark.parametrize(
    "line",
    [
        "x = 1  # TODO later",
        "# FIXME",
        "# XXX",
        "# HACK: ",
        "raise NotImplementedError",
        "pytest.skip('not here')",
        "@pytest.mark.skipif(True, reason='')",
        "@pytest.mark.xfail",
        "pytest.importorskip('numpy')",
    ],
)
def test_a_leftover_is_found(line, tmp_path):
    path = tmp_path / "module.py"
    path.write_text(f"x = 1\n{line}\n")
    assert [problem.startswith(f"{path}:2: ") for problem in lines_matching(LEFTOVER, path)] == [True]


def test_a_word_that_only_looks_like_a_leftover_is_not_found(tmp_path):
    path = tmp_path / "module.py"
    path.write_text("MASTODON = 'skip this message'\nself.skip_to(4)\n")
    assert lines_matching(LEFTOVER, path) == []


def test_a_forbidden_name_is_found(tmp_path):
    for name in ("utils.py", "wire.py"):
        (tmp_path / name).write_text("")
    assert len(forbidden_names(written_files(tmp_path))) == 1


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (REGISTRY_HOST, "https://files.python" + "hosted.org/x"),
        (REGISTRY_HOST, "index = pypi" + ".org/simple"),
        (DEVELOPER_PATH, "DATA = '/wo" + "rk/shared/data'"),
        (DEVELOPER_PATH, "cache: /ro" + "ot/.cache"),
        (DEVELOPER_PATH, "file:///ho" + "me/ada/x"),
    ],
)
def test_a_host_or_path_is_found(pattern, line, tmp_path):
    path = tmp_path / "notes.md"
    path.write_text(line)
    assert len(lines_matching(pattern, path)) == 1


@pytest.mark.parametrize("line", ["docs/work/notes.md", "network/root/zone", "https://example.com/root/x"])
def test_an_ordinary_path_is_not_found(line, tmp_path):
    path = tmp_path / "notes.md"
    path.write_text(line)
    assert lines_matching(DEVELOPER_PATH, path) == []


def test_environments_and_caches_are_not_searched(tmp_path):
    for folder in (".venv", "src/nearcast.egg-info", "src/__pycache__", ".ci", "src/nearcast"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "file").write_text("")
    found = {path.relative_to(tmp_path).as_posix() for path in written_files(tmp_path)}
    assert found == {".ci/file", "src/nearcast/file"}


def test_a_dead_module_is_found():
    modules = [
        Module("nearcast.core", '"""Only words."""', is_package=True),
        Module("nearcast.core.wire", "import nearcast.core.wire"),
        Module("nearcast.core.plan", "from . import snapshot"),
        Module("nearcast.core.snapshot", ""),
        Module("nearcast.cli.main", "COMMANDS = ['nearcast.cli.bench:run']"),
        Module("nearcast.cli.bench", ""),
    ]
    users = [Module("tests.core.test_plan", "from nearcast.core.plan import Plan")]
    assert dead_modules(modules, users, {"nearcast.cli.main"}) == ["nearcast.core.wire: nothing imports it"]


def test_entry_points_are_read_from_the_project_file():
    assert declared_entry_points('[project.scripts]\nrun = "nearcast.cli.main:main"') == {"nearcast.cli.main"}


@pytest.mark.xdist_group("tidy")
def test_a_group_of_tests_keeps_together(request: pytest.FixtureRequest) -> None:
    """The processes of a run are given whole groups, which they know by the ends of the tests' names."""
    grouped = request.config.getoption("loadgroup", False)
    assert request.node.nodeid.endswith("@tidy") == bool(grouped)
