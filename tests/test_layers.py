"""Layers: which package may import from which. Only imports at the top of a module count: they run when it loads."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "nearcast"

_CORE = ("errors", "core.model", "core.wire")
# Of a package, all that it may import besides its own modules.
LAYERS: dict[str, tuple[str, ...]] = {
    "": (),
    "__main__": (),
    "errors": (),
    "core": (),
    "core.model": ("errors",),
    "core.wire": ("errors", "core.model"),
    "core.client": _CORE,
    "core.agent": _CORE,
    "core.controller": _CORE,
    "coordinates": ("errors", "core.model"),
    "policies": ("errors", "core.model"),
    "runtime": (*_CORE, "core.client", "core.controller"),
    "asyncio": (*_CORE, "core.client", "runtime"),
    "agent": (*_CORE, "core.agent", "coordinates", "runtime", "gateway"),
    "gateway": (*_CORE, "runtime"),
    "subscriber": (*_CORE, "runtime"),
    "pipeline": (*_CORE, "runtime"),
    "sim": (*_CORE, "core.client", "core.agent", "core.controller", "runtime"),
    "flow": ("errors", "core.model", "core.controller", "policies"),
    "testing": (*_CORE, "runtime"),
    "workloads": (*_CORE, "runtime", "flow", "pipeline", "subscriber", "testing"),
    "demo": (*_CORE, "runtime", "testing", "workloads"),
    "experiments": (*_CORE, "runtime", "coordinates", "policies", "flow", "sim", "testing", "workloads"),
    "bench": (*_CORE, "runtime", "coordinates", "policies", "flow", "pipeline", "testing", "workloads"),
    "cli": (*_CORE, "testing", "workloads", "experiments", "demo"),
}

Graph = dict[str, set[str]]


def graph_of(source: Path) -> Graph:
    """Each module, by its dotted name below `source`, and the modules of ours that are loaded with it."""
    paths = {name_of(path.relative_to(source)): path for path in source.rglob("*.py")}
    return {name: set(imported(path, source, set(paths))) - {name} for name, path in paths.items()}


def name_of(path: Path) -> str:
    return ".".join(part for part in path.with_suffix("").parts if part != "__init__")


def imported(path: Path, source: Path, modules: set[str]) -> Iterator[str]:
    package = ("nearcast", *path.relative_to(source).parent.parts)
    for node in loaded(ast.parse(path.read_text(encoding="utf-8")).body):
        if isinstance(node, ast.Import):  # `import nearcast` alone adds nothing: every module of ours loads that one
            yield from (alias.name.partition(".")[2] for alias in node.names if alias.name.startswith("nearcast."))
        elif isinstance(node, ast.ImportFrom):
            parents = package[: len(package) - node.level + 1] if node.level else ()
            ours, _, origin = ".".join([*parents, *filter(None, [node.module])]).partition(".")
            if ours == "nearcast":
                inner = {f"{origin}.{alias.name}" if origin else alias.name for alias in node.names}
                yield from (name if name in modules else origin for name in inner)


def loaded(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run when a module loads: not in functions, not for type checkers, not as a program."""
    for node in body:
        yield node
        apart = isinstance(node, ast.If) and any(
            word in ast.unparse(node.test) for word in ("TYPE_CHECKING", "__name__")
        )
        if isinstance(node, ast.If | ast.Try | ast.With | ast.ClassDef) and not apart:
            inner = [part for name in ("body", "orelse", "finalbody") for part in getattr(node, name, [])]
            yield from loaded(inner + [part for handler in getattr(node, "handlers", []) for part in handler.body])


def package_of(module: str) -> str:
    parts = module.split(".")
    return ".".join(parts[: 2 if parts[0] == "core" and len(parts) > 1 else 1])


def trespasses(graph: Graph, layers: dict[str, tuple[str, ...]]) -> list[str]:
    return [
        f"{module} imports {target}: not allowed by LAYERS"
        for module, targets in sorted(graph.items())
        for target in sorted(targets)
        if package_of(module) != package_of(target) and package_of(target) not in layers[package_of(module)]
    ]


def cycle_in(graph: Graph) -> list[str]:
    """One cycle, as the names on its way; empty if there is none."""
    done: set[str] = set()

    def walk(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in done:
            return []
        for target in sorted(graph.get(name, ())):
            if found := walk(target, [*way, name]):
                return found
        done.add(name)
        return []

    return next((found for name in sorted(graph) if (found := walk(name, []))), [])


def packages(graph: Graph) -> Graph:
    joined: Graph = {}
    for module, targets in graph.items():
        own = package_of(module)
        joined.setdefault(own, set()).update(package_of(target) for target in targets if package_of(target) != own)
    return joined


def test_every_package_keeps_to_its_layer() -> None:
    graph = graph_of(SOURCE)
    assert len(graph) > 100
    assert {package_of(module) for module in graph} == set(LAYERS)
    assert trespasses(graph, LAYERS) == []


def test_there_is_no_cycle_of_modules_or_packages() -> None:
    graph = graph_of(SOURCE)
    assert cycle_in(graph) == []
    assert cycle_in(packages(graph)) == []


def test_nothing_is_allowed_that_nobody_needs() -> None:
    needed = packages(graph_of(SOURCE))
    assert {(own, other) for own, others in LAYERS.items() for other in others if other not in needed[own]} <= SPARE


# Allowed although nobody needs it at the moment: the layers below are the same for all of these.
SPARE = {(own, other) for own in LAYERS for other in _CORE}


@pytest.mark.parametrize(
    "text",
    [
        "from nearcast.runtime.b import x",
        "from nearcast.runtime import b",
        "import nearcast.runtime.b as b",
        "from ...runtime import b",
        "from ...runtime.b import x",
        "try:\n    import nearcast.runtime.b\nexcept ImportError:\n    pass",
        "if sys.platform == 'linux':\n    from nearcast.runtime import b",
    ],
)
def test_every_kind_of_import_is_seen(text: str, tmp_path: Path) -> None:
    written(tmp_path, {"core/model/a.py": text, "runtime/b.py": ""})
    assert trespasses(graph_of(tmp_path), LAYERS) == ["core.model.a imports runtime.b: not allowed by LAYERS"]


@pytest.mark.parametrize(
    "text",
    [
        "def lazy():\n    from nearcast.runtime import b",
        "if TYPE_CHECKING:\n    from nearcast.runtime import b",
        "if __name__ == '__main__':\n    from nearcast.runtime import b",
        "import nearcast",
        "from . import c",
        "from runtime import b",
    ],
)
def test_what_is_not_loaded_or_not_ours_is_allowed(text: str, tmp_path: Path) -> None:
    written(tmp_path, {"core/model/a.py": text, "core/model/c.py": "", "runtime/b.py": ""})
    assert trespasses(graph_of(tmp_path), LAYERS) == []


def written(folder: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_trespass_and_a_cycle_are_found(tmp_path: Path) -> None:
    texts = {"core/model/a.py": "from nearcast.runtime.b import x", "runtime/b.py": "from nearcast.core.model import a"}
    written(tmp_path, texts)
    graph = graph_of(tmp_path)
    assert trespasses(graph, LAYERS) == ["core.model.a imports runtime.b: not allowed by LAYERS"]
    assert cycle_in(graph) == ["core.model.a", "runtime.b", "core.model.a"]
    assert cycle_in({"a": {"b"}, "b": set()}) == []


@pytest.mark.parametrize("module", ["core.client.machine", "core", "runtime.driver", ""])
def test_a_module_belongs_to_a_package(module: str) -> None:
    assert package_of(module) in LAYERS
