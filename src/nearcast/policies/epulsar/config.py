"""The thresholds of ePulsar, and the two ways to know which brokers keep a bound."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from nearcast.errors import UsageError


class Ranking(StrEnum):
    """How the brokers that a topic could be on are known and ranked."""

    TOP8 = "top8"  # ours: the agents' exact worst latency of the best eight
    CENTROIDS = "centroids"  # the paper's: W(t, b) from the centroids of publishers and subscribers


class EPulsarConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds, with their sources."""

    ranking: Ranking = Ranking.TOP8
    resource_high: float = 0.85  # share of CPU, memory and network; section 3.4.2, "same as Pulsar"
    messages_high_per_s: float = 1.5e6  # R_out^th, for brokers without their own; section 5.4, on the authors' hardware
    gain_min: float = 0.10  # share of today's latency that a move must save where no broker keeps the bound

    def __post_init__(self) -> None:
        rules = (
            (0 < self.resource_high <= 1, "0 < resource_high <= 1"),
            (self.messages_high_per_s > 0, "messages_high_per_s > 0"),
            (0 <= self.gain_min < 1, "0 <= gain_min < 1"),
        )
        for kept, rule in rules:
            if not kept:
                raise UsageError(f"ePulsar's thresholds break the rule {rule}: change one of them")
