"""The snapshot: the controller's immutable view of all reports, which policies read."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from nearcast.core.bus import Report


class Snapshot(msgspec.Struct, frozen=True):
    at_s: float
    reports: Mapping[str, Report]  # the newest of each live broker
