"""The options of the source of logs: what is wrong with one is said."""

from __future__ import annotations

import pytest

from nearcast.errors import UsageError
from nearcast.pipeline.sources.logs import DEFAULT_MAX_MESSAGES, parse_options

GIVEN = {"url": "redis://x", "logs": "a@1,b@2"}


def test_defaults() -> None:
    found = parse_options(GIVEN)
    assert found.logs == {"a@1", "b@2"}
    assert (found.max_messages, found.tasks, found.starting) == (DEFAULT_MAX_MESSAGES, 2, {})
    assert parse_options(GIVEN | {"startingPositions": '{"s": 3}', "tasks": "7"}).starting == {"s": 3}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"url": ""}, "'url' of nearcast_logs is missing"),
        ({"logs": ""}, "'logs' of nearcast_logs is missing"),
        ({"tasks": "0"}, "tasks is '0': give a number of at least 1"),
        ({"maxMessagesPerBatch": "many"}, "maxMessagesPerBatch is 'many'"),
        ({"startingPositions": "[1]"}, "startingPositions .*: give JSON"),
    ],
)
def test_a_wrong_option_is_named(changed: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_options(GIVEN | changed)
