"""Whether an execution can have results although nothing is new: only then Spark has to be asked."""

from __future__ import annotations

import pytest

from nearcast.pipeline.channels.execution import prepare
from nearcast.pipeline.channels.language import parse_channel

SCHEMAS = {
    "reports": {"id": "INT", "kind": "STRING"},
    "users": {"id": "INT", "kind": "STRING"},
    "shelters": {"name": "STRING", "kind": "STRING"},
}


@pytest.mark.parametrize(
    ("source", "needed"),
    [
        ("NEW reports r", {"reports"}),
        ("NEW reports r LEFT JOIN shelters s ON s.kind = r.kind", {"reports"}),
        ("NEW reports r JOIN NEW users u ON u.id = r.id", {"reports", "users"}),
        ("NEW reports r LEFT JOIN NEW users u ON u.id = r.id", {"reports"}),
        ("shelters r LEFT JOIN NEW reports n ON n.kind = r.kind", set()),
        ("shelters r JOIN (SELECT count(*) AS n FROM NEW reports) c ON c.n = 0", set()),
        ("shelters r LEFT ANTI JOIN NEW reports n ON n.kind = r.kind", set()),
    ],
)
def test_new_records_that_a_channel_cannot_do_without(source: str, needed: set[str]) -> None:
    text = f"CREATE CHANNEL c(k STRING) PERIOD 1 SECOND AS SELECT r.kind FROM {source} WHERE r.kind = :k"
    prepared = prepare(parse_channel(text), SCHEMAS)
    assert {name for name in SCHEMAS if prepared.certainly_empty([name])} == needed
    assert not prepared.certainly_empty([])
