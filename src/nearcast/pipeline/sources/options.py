"""The options of the source over Valkey Streams, checked."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from nearcast.errors import UsageError

DEFAULT_MAX_RECORDS = 100_000
_ID = re.compile(r"\d{1,20}-\d{1,20}")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What `parse_options` made of them."""

    url: str
    streams: tuple[str, ...]  # names, or `prefix*`
    starting: str | dict[str, str] = "earliest"  # or `latest`, or ids by stream
    max_records: int = DEFAULT_MAX_RECORDS
    fail_on_data_loss: bool = True

    def want(self, stream: str) -> bool:
        prefixes = tuple(name[:-1] for name in self.streams if name.endswith("*"))
        return stream in self.streams or stream.startswith(prefixes)


def parse_options(given: Mapping[str, str]) -> Options:
    """Raises UsageError, which names the option and what it takes."""
    for required in ("url", "streams"):
        if not given.get(required):
            raise UsageError(f"the option {required!r} of valkey_streams is missing")
    streams = tuple(name for name in (part.strip() for part in given["streams"].split(",")) if name)
    maximum = given.get("maxRecordsPerBatch") or str(DEFAULT_MAX_RECORDS)
    if not maximum.isdecimal() or int(maximum) < 1:
        raise UsageError(f"maxRecordsPerBatch is {maximum!r}: give a number from 1")
    fail = (given.get("failOnDataLoss") or "true").lower()
    if fail not in ("true", "false"):
        raise UsageError(f"failOnDataLoss is {fail!r}: give true or false")
    return Options(
        url=given["url"],
        streams=streams,
        starting=_starting(given.get("startingOffsets") or "earliest"),
        max_records=int(maximum),
        fail_on_data_loss=fail == "true",
    )


def _starting(text: str) -> str | dict[str, str]:
    if text in ("earliest", "latest"):
        return text
    hint = 'give earliest, latest, or JSON like {"stream": "0-0"}'
    try:
        ids = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.MsgspecError as error:
        raise UsageError(f"startingOffsets is {text!r} ({error}): {hint}") from None
    if not all(_ID.fullmatch(one) for one in ids.values()):
        raise UsageError(f"startingOffsets is {text!r}, with an id that is not ms-seq: {hint}")
    return ids
