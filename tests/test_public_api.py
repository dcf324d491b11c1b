"""The public API: one list of names, and an import that is quick and light."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import nearcast
from nearcast import errors

API = Path(__file__).resolve().parents[1] / "docs" / "api.md"

PUBLIC = [
    "Client",
    "Event",
    "Gap",
    "Interrupted",
    "Limits",
    "Lost",
    "Message",
    "Mode",
    "Overflow",
    "Placement",
    "Reader",
    "State",
    "StateChange",
    "Subscriber",
    "Subscription",
    "Timing",
    "connect",
]

HEAVY = ["IPython", "hypothesis", "numpy", "pandas", "pyspark", "pytest", "redis", "rich", "scipy", "typer", "uvloop"]

PROBE = """
import json, sys, time
began_s = time.process_time()
import nearcast
alone_s = time.process_time() - began_s
alone = sorted(sys.modules)
nearcast.connect
took_s = time.process_time() - began_s
print(json.dumps({"alone_s": alone_s, "alone": alone, "took_s": took_s, "modules": sorted(sys.modules)}))
"""


def imported() -> dict[str, Any]:
    """What a fresh interpreter says of `import nearcast`, and of its client."""
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def test_the_public_names_are_these() -> None:
    assert nearcast.__all__ == PUBLIC
    assert all(getattr(nearcast, name) is not None for name in PUBLIC)
    assert set(PUBLIC) <= set(dir(nearcast))


def test_nothing_else_is_exported_by_accident() -> None:
    public = {name for name, value in vars(nearcast).items() if name[0] != "_" and type(value).__name__ != "module"}
    assert public - {"TYPE_CHECKING"} <= set(PUBLIC)


def test_a_name_that_does_not_exist_is_told() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Subscribr'"):
        _ = nearcast.Subscribr


def test_the_client_of_gateways_is_loaded_when_it_is_used() -> None:
    probe = "import nearcast, sys; print('httpx' in sys.modules, nearcast.Subscriber.__name__, 'httpx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "Subscriber", "True"]


def test_an_import_is_light() -> None:
    found = imported()
    assert [name for name in found["alone"] if name.startswith(("nearcast.", "asyncio"))] == []
    modules = found["modules"]
    assert [name for name in HEAVY if name in modules] == []
    ours = {".".join(name.split(".")[1:3]) for name in modules if name.startswith("nearcast.")}
    apart = ("agent", "cli", "core.agent", "core.controller", "gateway", "pipeline", "policies", "sim", "testing")
    assert [name for name in ours if name.startswith(apart)] == []


def test_an_import_is_quick() -> None:
    """Time of the processor, and the best of three: other work on the machine must not fail it."""
    assert min(imported()["took_s"] for _ in range(3)) < 0.3


def test_every_error_is_in_the_drawing_of_its_module() -> None:
    drawing = errors.__doc__ or ""
    classes = {name for name, value in vars(errors).items() if isinstance(value, type)}
    assert {name for name in classes if name not in drawing} == set()


@pytest.mark.parametrize(
    ("error", "parent"),
    [
        (errors.InvalidTopic, errors.UsageError),
        (errors.PayloadTooLarge, errors.UsageError),
        (errors.UsageError, ValueError),
        (errors.NotACluster, errors.ClusterError),
        (errors.Unavailable, errors.ClusterError),
        (errors.TimedOut, errors.Unavailable),
        (errors.TimedOut, TimeoutError),
        (errors.PublishBufferFull, errors.LimitReached),
        (errors.SlowSubscriber, errors.LimitReached),
    ],
)
def test_errors_can_be_caught_by_who_has_to_act(error: type[Exception], parent: type[Exception]) -> None:
    assert issubclass(error, parent)
    assert issubclass(error, errors.NearcastError)
    assert error.__doc__


# --- docs/api.md


def listed(text: str) -> dict[str, list[str]]:
    """The names in the tables of docs/api.md, by heading."""
    sections = re.split(r"^##+ (.+)$", text, flags=re.MULTILINE)[1:]
    return {
        heading: re.findall(r"^\| `(\w+)` \|", body, re.MULTILINE)
        for heading, body in zip(sections[::2], sections[1::2], strict=True)
    }


def public_names(path: str) -> set[str]:
    """What a module exports, or the public members of a class."""
    module_name, _, class_name = path.rpartition(".")
    if class_name[:1].isupper():
        members = vars(getattr(import_module(module_name), class_name))
        return {name for name in members if name[0] != "_"} - INTERNAL
    module = import_module(path)
    exported = getattr(module, "__all__", None)
    classes = {name for name, value in vars(module).items() if isinstance(value, type)}
    return set(exported) if exported is not None else classes


INTERNAL = {"attaching"}  # of Client, for Subscription

DOCUMENTED = [
    "nearcast",
    "nearcast.Client",
    "nearcast.Subscription",
    "nearcast.Reader",
    "nearcast.Subscriber",
    "nearcast.asyncio",
    "nearcast.subscriber",
    "nearcast.testing",
    "nearcast.errors",
]


def test_the_document_has_a_section_for_each_public_module_and_class() -> None:
    assert list(listed(API.read_text(encoding="utf-8"))) == DOCUMENTED


@pytest.mark.parametrize("path", DOCUMENTED)
def test_the_document_lists_what_is_public_and_nothing_else(path: str) -> None:
    names = listed(API.read_text(encoding="utf-8"))[path]
    assert len(names) == len(set(names))
    assert set(names) == public_names(path), f"docs/api.md, {path}: correct the list"


def test_a_document_is_read_by_section() -> None:
    text = "# API\n\n## a\n\n| name | what |\n|---|---|\n| `x` | `y` is not one. |\n\n### a.B\n\nWords.\n"
    assert listed(text) == {"a": ["x"], "a.B": []}
