"""The public API: one list of names, and an import that is quick and light."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

import nearcast
from nearcast import errors

PUBLIC = [
    "Client",
    "Event",
    "Gap",
    "Interrupted",
    "Limits",
    "Message",
    "Mode",
    "Overflow",
    "Placement",
    "State",
    "StateChange",
    "Subscription",
    "Timing",
    "connect",
]

HEAVY = ["IPython", "hypothesis", "numpy", "pandas", "pyspark", "pytest", "redis", "rich", "scipy", "typer", "uvloop"]

PROBE = """
import json, sys, time
began_s = time.process_time()
import nearcast
took_s = time.process_time() - began_s
print(json.dumps({"took_s": took_s, "modules": sorted(sys.modules)}))
"""


def imported() -> dict[str, Any]:
    """What a fresh interpreter says of `import nearcast`."""
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def test_the_public_names_are_these() -> None:
    assert nearcast.__all__ == PUBLIC
    assert all(hasattr(nearcast, name) for name in PUBLIC)


def test_nothing_else_is_exported_by_accident() -> None:
    public = {name for name, value in vars(nearcast).items() if name[0] != "_" and not hasattr(value, "__path__")}
    modules = {name for name in public if type(getattr(nearcast, name)).__name__ == "module"}
    assert public - modules == set(PUBLIC)


def test_an_import_is_light() -> None:
    modules = imported()["modules"]
    assert [name for name in HEAVY if name in modules] == []
    assert not [name for name in modules if name.startswith(("nearcast.cli", "nearcast.sim", "nearcast.testbed"))]


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
