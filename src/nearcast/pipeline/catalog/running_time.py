"""How long a data cluster has run, over all processes that had its folder: the clock by which things grow old.

The wall clock may be set by hours in either direction, and what is deleted because of that is gone. This one counts
the seconds of the monotonic clock and goes on where it was after a restart. It is written down ahead, so that a kill
does not set it back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from nearcast.pipeline.catalog.database import Database

AHEAD_S = 60.0  # one write for so many seconds; a restart may skip as many

_TABLES = """
CREATE TABLE IF NOT EXISTS running_time (only INTEGER PRIMARY KEY CHECK (only = 1), upto_s REAL NOT NULL);
"""


class RunningTime:
    """Call it for the seconds. One per folder."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.monotonic) -> None:
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        database.create(_TABLES)
        row = database.row("SELECT upto_s FROM running_time")
        self._noted_s = float(row["upto_s"]) if row is not None else 0.0
        self._zero_s = clock() - self._noted_s

    def __call__(self) -> float:
        now_s = self._clock() - self._zero_s
        with self._lock:
            ahead = now_s >= self._noted_s
            if ahead:
                self._noted_s = now_s + AHEAD_S
        if ahead:
            self._database.run("REPLACE INTO running_time VALUES (1, ?)", (self._noted_s,))
        return now_s
