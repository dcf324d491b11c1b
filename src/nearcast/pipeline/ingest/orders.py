"""What a task is told about the feeds of a batch, and what it tells when it is done."""

from __future__ import annotations

import msgspec

from nearcast.core.wire.backend import Credentials
from nearcast.pipeline.ingest.files import WrittenFile
from nearcast.pipeline.storage import Column


class FeedOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One feed, as a task needs it for one batch."""

    name: str
    log: str  # its key
    topic: str  # or a pattern
    format: str
    columns: tuple[Column, ...]
    key: str
    since: dict[str, int]  # stream -> the position it had when the feed was created: only what follows is for the feed
    number: int  # of the dataset's batch
    records: str  # the folder of the batch
    dead_letters: str  # the folder of its dead letters


class Order(msgspec.Struct, frozen=True):
    """All feeds of a batch, and with what name and password the servers are asked."""

    feeds: tuple[FeedOrder, ...]
    credentials: Credentials


class FeedOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one feed's messages in one task."""

    feed: str
    records: int  # readable ones; of a keyed dataset, also those that are not in the file because a newer one is
    dead: int
    file: WrittenFile | None
    dead_letters: WrittenFile | None


class ReadRange(msgspec.Struct, frozen=True):
    """A range, and how many of its messages were not there any more. If it ends at LOST, that is not known."""

    stream: str
    after: int
    upto: int
    lost: int
    entry: str = ""  # the last entry of the stream that was read whole,
    entry_position: int = 0  # and the position at its end


class Manifest(msgspec.Struct, frozen=True):
    """What one task has read and written."""

    ranges: list[ReadRange]
    outcomes: list[FeedOutcome]
