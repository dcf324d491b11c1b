"""What the data cluster process can be told. The defaults suit one machine."""

from __future__ import annotations

import msgspec

from nearcast.errors import UsageError
from nearcast.pipeline.catalog.limits import require_positive


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one request, or all that wait at once, may ask for; more is refused."""

    wanted: int = 10_000  # subscriptions in one call
    long_polls: int = 1000  # at once
    json_bytes: int = 8 << 20  # of a request's body
    dataset_bytes: int = 256 << 20  # of a dataset's file

    def __post_init__(self) -> None:
        require_positive(self)


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of the service; retention drops results that are too old or too many."""

    token: str = ""  # bearer token that callers must show, and that opens everything; empty: none
    gateway_token: str = ""  # opens what gateways need; empty: they show the other
    executions_at_once: int = 2  # of all channels; each uses all cores for parts of its time
    keep_s: float = 24 * 3600.0
    keep_executions: int = 1000  # of each channel
    broker_away_s: float = 7 * 86400.0  # a broker not heard of for so long holds nothing any more
    keep_records_s: float = 0.0  # of datasets that feeds fill, without a key; 0: all
    telemetry: bool = True  # aggregate the agents' reports too
    housekeeping_s: float = 30.0  # between two looks at retention and compaction
    limits: RequestLimits = RequestLimits()

    def __post_init__(self) -> None:
        if self.gateway_token and not self.token:
            raise UsageError("NEARCAST_GATEWAY_TOKEN is set, NEARCAST_DATA_TOKEN is not: set it too, or all may do all")
        if self.gateway_token and self.gateway_token == self.token:
            raise UsageError("NEARCAST_GATEWAY_TOKEN and NEARCAST_DATA_TOKEN are equal: give gateways one of their own")
        if self.executions_at_once < 1:
            raise UsageError(f"executions_at_once is {self.executions_at_once}: give at least 1")
        if self.keep_s <= 0 or self.keep_executions < 1:
            raise UsageError("keep_s must be above 0 and keep_executions at least 1: subscribers fetch what is kept")
        if self.broker_away_s <= 0:
            raise UsageError(f"broker_away_s is {self.broker_away_s}: give a number of seconds above 0")
        if self.housekeeping_s <= 0:
            raise UsageError(f"housekeeping_s is {self.housekeeping_s}: give a number of seconds above 0")
