"""Keys of feeds on the store's server: written by collectors and by the data cluster."""

from __future__ import annotations

import msgspec

from nearcast.core.store_names import FEED_PREFIX


class FeedKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The keys of one feed."""

    stream: str  # its messages
    lease: str  # which agent collects
    standby: str  # which agent stands by
    state: str  # hash: `until`, up to when everything received was in the stream (ms, the server's clock)
    lines: str  # hash: topic and publisher -> the last sequence in the stream
    older_lines: str  # the same, of lines that were quiet for a while


def feed_keys(feed: str) -> FeedKeys:
    stream = FEED_PREFIX + feed
    return FeedKeys(
        stream=stream,
        lease=f"{stream}:lease",
        standby=f"{stream}:standby",
        state=f"{stream}:state",
        lines=f"{stream}:lines",
        older_lines=f"{stream}:older",
    )
