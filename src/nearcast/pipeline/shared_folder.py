"""Whether executors see the data cluster's folder: on a cluster of several machines it must be on shared storage.

Without it Spark is content: executors write their files each to their own disk, and whoever looks at the folder here
finds nothing. So a few tasks are sent out to read a file and to write one, before any job is started.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nearcast.errors import ClusterError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TASKS_MOST = 64  # enough to reach every executor of a cluster of the size that one folder serves


def require_shared(spark: SparkSession, folder: Path) -> None:
    """Raises ClusterError, which names the hosts that do not share the folder with this one."""
    mark = folder / f".nearcast-seen-{secrets.token_hex(8)}"
    mark.write_text(mark.name)
    context = spark.sparkContext
    tasks = min(TASKS_MOST, 2 * context.defaultParallelism)
    try:
        hosts = context.parallelize(range(tasks), tasks).map(_sees(str(mark))).collect()
        blind = {host for task, (host, sees) in enumerate(hosts) if not sees or not _trace(mark, task).exists()}
    finally:
        for path in (mark, *(_trace(mark, task) for task in range(tasks))):
            path.unlink(missing_ok=True)
    if blind:
        raise ClusterError(
            f"executors on {', '.join(sorted(blind))} cannot see {folder}, or what they write is not seen here: give a "
            "--folder on storage that all machines of the cluster share under the same path"
        )


def _sees(mark: str) -> Callable[[int], tuple[str, bool]]:
    """What each task does, on its executor."""

    def look(task: int) -> tuple[str, bool]:
        if not os.path.exists(mark):
            return socket.gethostname(), False
        try:
            _trace(Path(mark), task).write_text(mark)
        except OSError:
            return socket.gethostname(), False
        return socket.gethostname(), True

    return look


def _trace(mark: Path, task: int) -> Path:
    return mark.with_name(f"{mark.name}.{task}")
