"""Options of the source: what they accept, and what they say to the rest."""

from __future__ import annotations

import pytest

from nearcast.errors import UsageError
from nearcast.pipeline.sources.valkey_streams import DEFAULT_MAX_RECORDS, Options, parse_options

GIVEN = {"url": "redis://127.0.0.1:1", "streams": "a, b*"}


def test_defaults() -> None:
    assert parse_options(GIVEN) == Options(
        url="redis://127.0.0.1:1",
        streams=("a", "b*"),
        starting="earliest",
        max_records=DEFAULT_MAX_RECORDS,
        fail_on_data_loss=True,
    )


def test_names_and_prefixes_say_which_streams_are_wanted() -> None:
    options = parse_options(GIVEN)
    assert [stream for stream in ("a", "ab", "b", "bc", "c") if options.want(stream)] == ["a", "b", "bc"]


def test_ids_to_begin_after() -> None:
    assert parse_options(GIVEN | {"startingOffsets": '{"a": "12-3"}'}).starting == {"a": "12-3"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"url": ""}, "'url' of valkey_streams is missing"),
        ({"streams": ""}, "'streams' of valkey_streams is missing"),
        ({"maxRecordsPerBatch": "0"}, "at least 1"),
        ({"maxRecordsPerBatch": "many"}, "at least 1"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"startingOffsets": "newest"}, "earliest, latest, or JSON"),
        ({"startingOffsets": '{"a": "12"}'}, "not ms-seq"),
    ],
)
def test_a_wrong_option_is_named(changed: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_options(GIVEN | changed)
