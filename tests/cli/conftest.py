"""A cluster as `nearcast up` starts it, for the commands that ask one. Makes `asking.py` importable."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, Any]]:
    """What `nearcast up` printed; at the end it must leave cleanly and take everything with it."""
    command = [sys.executable, "-m", "nearcast", "up", "--brokers", "b1,b2,b3", "--output", "json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        while not lines or lines[-1] not in ("}\n", ""):
            lines.append(process.stdout.readline())
        try:
            yield json.loads("".join(lines))
        finally:
            process.send_signal(signal.SIGINT)
        rest, messages = process.communicate(timeout=20)
        assert (process.returncode, rest) == (0, "")
        said = [line for line in messages.splitlines() if not line.startswith("using ")]
        assert said == ["starting ...", "stopping ..."]
