"""The thresholds of multistage balancing, with their sources and the rules that tie them together."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from nearcast.errors import UsageError


class Scheme(StrEnum):
    """How a target is chosen (section 5.2)."""

    LDM = "ldm"  # the broker with the least load
    SDM = "sdm"  # of the brokers below the mean load, the one that has most of the subscriber's subscriptions


class MultistageConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Loads are bytes per second, in and out together. The coefficient of variation has no unit."""

    scheme: Scheme = Scheme.LDM
    alpha: float = 0.15  # 6.2.2: subscribers move while the coefficient of variation is above it
    beta_bytes_per_s: float = 300e6  # 6.2.2: and the mean load is above this
    gamma: float = 0.5  # the paper has no figure: figure 13's NR placement (2,000 of 10,000 subscribers on one of ten
    # brokers, below 500 on others) is about there and calls for a shuffle; RR and RND (6.1.3) stay far below it
    theta_bytes_per_s: float = 300e6  # no figure either: as beta, for below it no move at all is worth its cost
    moves_max: int = 1_000_000  # ours: a plan has no more single moves than this

    def __post_init__(self) -> None:
        rules = (
            (0 <= self.alpha <= self.gamma, "0 <= alpha <= gamma"),
            (0 <= self.beta_bytes_per_s <= self.theta_bytes_per_s, "0 <= beta_bytes_per_s <= theta_bytes_per_s"),
            (self.moves_max >= 1, "moves_max >= 1"),
        )
        for kept, rule in rules:
            if not kept:
                raise UsageError(f"the thresholds of multistage balancing break the rule {rule}: change one of them")
