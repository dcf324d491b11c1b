"""The log of reports on the broker's server: bounded in bytes too, or long reports would fill its memory."""

from __future__ import annotations

from typing import Any

import pytest

from nearcast.core.agent.load import REPORTS_BYTES_MAX, REPORTS_MAX, ReportLog


class Link:
    def __init__(self) -> None:
        self.kept: list[int] = []

    def append(self, stream: bytes, records_max: int, fields: Any, then: Any) -> None:
        self.kept.append(records_max)


@pytest.mark.parametrize(("size", "kept"), [(1000, REPORTS_MAX), (1_500_000, REPORTS_BYTES_MAX // 1_500_000)])
def test_fewer_reports_are_kept_the_longer_they_are(size: int, kept: int) -> None:
    link: Any = Link()
    ReportLog("b1", 1).append(link, 0.0, bytes(size))
    assert link.kept == [kept]
