"""Workload files of the OpenMessaging benchmark, which the paper profiled with, as configurations.

They are YAML, but flat: lines of `key: value`. So no YAML library is needed, and anything else is refused.

| key | here |
|---|---|
| `topics` x `partitionsPerTopic` | topics: a partition is what one server orders and delivers |
| `producersPerTopic` | publishers on each topic: a producer speaks to every partition |
| `subscriptionsPerTopic` | subscribers of each topic: a subscription gets every message once |
| `messageSize` | payload |
| `producerRate` | published per second on all topics together; 0, or 10 million and more: as fast as possible |

`consumerPerSubscription` changes nothing: consumers of one subscription share its messages, and subscribers of ours do
not. Other keys are about payloads, backlogs and duration, and are ignored.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from nearcast.errors import UsageError
from nearcast.runtime.profiling.configuration import (
    CONNECTIONS_MAX,
    MESSAGES_MIN,
    PAYLOAD_MAX_BYTES,
    Configuration,
)

FILE_MAX_BYTES = 64 << 10
COUNT_MAX = 10_000_000
UNLIMITED_PER_S = 10_000_000  # what these files write for "discover the highest rate"
SCALE_MAX = 1e6

_LINE = re.compile(r"(?P<key>[A-Za-z][A-Za-z0-9_]*):(?:\s+(?P<value>.*))?")
_COUNT = re.compile(r"[0-9]{1,12}")
_MOST = {
    "topics": COUNT_MAX,
    "partitionsPerTopic": COUNT_MAX,
    "producersPerTopic": COUNT_MAX,
    "subscriptionsPerTopic": CONNECTIONS_MAX - 1,  # the only count that is not divided by a scale
    "messageSize": PAYLOAD_MAX_BYTES,
    "producerRate": 10**12,
}
_MAY_BE_ZERO = "producerRate"


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """One file, in our words."""

    name: str
    topics: int
    publishers: int  # on each topic
    subscribers: int  # of each topic
    payload_bytes: int
    rate_per_s: int | None  # published on all topics together; None: as fast as possible

    def scaled(self, scale: float, seconds: float) -> Configuration:
        """Topics, publishers on each, and the rate divided by the scale; never less than one topic and publisher."""
        if not 1 <= scale <= SCALE_MAX:
            raise UsageError(f"a scale of {scale:g}: use 1 to {SCALE_MAX:g}; workloads are divided by it")
        topics, publishers = max(1, round(self.topics / scale)), max(1, round(self.publishers / scale))
        needed = topics * (publishers + self.subscribers)
        if needed > CONNECTIONS_MAX:
            raise UsageError(
                f"{self.name}: it needs {needed:,} connections, and {CONNECTIONS_MAX} are allowed: "
                f"use a larger --scale than {scale:g}"
            )
        rate_per_s = None if self.rate_per_s is None else self.rate_per_s / scale
        if rate_per_s is not None and rate_per_s * seconds < MESSAGES_MIN:
            raise UsageError(
                f"{self.name}: {rate_per_s:g} messages per second are too few for runs of {seconds:g} s: "
                "use a smaller --scale, or more --seconds"
            )
        return Configuration(
            topics=topics,
            publishers=publishers,
            subscribers=self.subscribers,
            payload_bytes=self.payload_bytes,
            rate_per_s=None if rate_per_s is None else rate_per_s / topics,
            name=self.name,
        )

    def said(self, scaled: Configuration, scale: float) -> str:
        """What became of it."""
        rate = "as fast as possible"
        if self.rate_per_s is not None and scaled.rate_per_s is not None:
            rate = f"{scaled.rate_per_s * scaled.topics:,.0f} of {self.rate_per_s:,} messages/s in"
        return (
            f"{self.name}: divided by {scale:g}: {scaled.topics:,} of {self.topics:,} topics, {scaled.publishers:,} of "
            f"{self.publishers:,} publishers on each, {rate}"
        )


def read_workload(path: Path) -> Workload:
    """Raises UsageError, which names the file and the key."""
    values = _values(path)
    missing = [key for key in _MOST if key not in values]
    if missing:
        raise UsageError(f"{path}: no {', '.join(missing)}: is this a workload file of the OpenMessaging benchmark?")
    counts = {key: _count(path, key, values[key]) for key in _MOST}
    rate_per_s = counts["producerRate"]
    return Workload(
        name=path.stem,
        topics=counts["topics"] * counts["partitionsPerTopic"],
        publishers=counts["producersPerTopic"],
        subscribers=counts["subscriptionsPerTopic"],
        payload_bytes=counts["messageSize"],
        rate_per_s=rate_per_s if 0 < rate_per_s < UNLIMITED_PER_S else None,
    )


def _values(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in enumerate(_text(path).splitlines(), 1):
        text = line.rstrip()
        if not text or text.lstrip().startswith("#") or text == "---":
            continue
        match = _LINE.fullmatch(text)
        if match is None:
            raise UsageError(f"{path}, line {number}: {text[:60]!r} is not `key: value`; nested values are not read")
        key = match["key"]
        if key in found:
            raise UsageError(f"{path}, line {number}: {key} is there a second time: remove one")
        found[key] = re.sub(r"(^|\s)#.*", "", match["value"] or "").strip().strip("\"'")
    return found


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_MAX_BYTES + 1)
        text = data.decode()
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}): give the path of a workload file") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: it is not text: give the path of a workload file") from None
    if len(data) > FILE_MAX_BYTES:
        raise UsageError(f"{path}: more than {FILE_MAX_BYTES:,} bytes: that is no workload file")
    return text


def _count(path: Path, key: str, value: str) -> int:
    least, most = int(key != _MAY_BE_ZERO), _MOST[key]
    if _COUNT.fullmatch(value) and least <= int(value) <= most:
        return int(value)
    raise UsageError(f"{path}: {key} is {value[:40]!r}: write a whole number from {least} to {most:,}")
