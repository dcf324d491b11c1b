"""How much a catalogue holds. At a limit the call is refused, with a hint; nothing is dropped for it."""

from __future__ import annotations

import msgspec

from nearcast.errors import UsageError


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
