"""How much a catalogue holds. At a limit the call is refused, with a hint; nothing is dropped for it."""

from __future__ import annotations

import msgspec

from nearcast.errors import UsageError

# What grew old goes in small shares, so that a mistake in the settings can be seen and stopped.
EXPIRED_SHARE = 0.1  # of a channel's executions, or of a dataset's segments, in one round
EXPIRED_LEAST = 10  # may go at once all the same


class CatalogLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How many of each there may be."""

    brokers: int = 1000
    channels: int = 1000
    subscriptions: int = 1_000_000  # backend ones, of all channels

    def __post_init__(self) -> None:
        require_positive(self)


def require_positive(limits: msgspec.Struct) -> None:
    for name in limits.__struct_fields__:
        if getattr(limits, name) < 1:
            raise UsageError(f"{name} is {getattr(limits, name)}: give at least 1")
