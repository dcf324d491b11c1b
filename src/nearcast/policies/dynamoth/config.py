"""Dynamoth's thresholds, with their sources and the rules that tie them together."""

from __future__ import annotations

import msgspec

from nearcast.errors import UsageError


class DynamothConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Load ratios are shares of a broker's outgoing capacity. "Code" means the constants of the authors' program."""

    lr_high: float = 0.80  # LR^high (III.B.3): a broker at or above it is relieved; code, "high load"
    lr_safe: float = 0.60  # LR^safe (III.B.3): relieve it until below this; code, "reduce"
    lr_low: float = 0.40  # III.B.4 gives no figure: two thirds of lr_safe, so that one broker of three can go
    all_subs_threshold: float = 1000.0  # publications per subscriber; half of what one broker bore in figure 4b
    publication_threshold: float = 1000.0  # publications per second; code
    all_pubs_threshold: float = 25.0  # subscribers per publication per second; half of what one bore in figure 4a
    subscriber_threshold: float = 250.0  # subscribers; half of what one broker bore in figure 4a
    collapse_share: float = 0.75  # replication ends, or shrinks, below this share of its threshold
    level_gap: float = 0.03  # load ratio: differences below it are not worth a move
    brokers_min: int = 1  # never propose to remove the last so many
    topics_per_step: int = 50  # III.B.4 "slowly": at most so many topics leave a broker at once

    def __post_init__(self) -> None:
        rules = (
            (0 <= self.lr_low < self.lr_safe < self.lr_high <= 1, "0 <= lr_low < lr_safe < lr_high <= 1"),
            (self.all_subs_threshold > 0 and self.all_pubs_threshold > 0, "thresholds of ratios > 0"),
            (self.publication_threshold >= 1 and self.subscriber_threshold >= 1, "thresholds of amounts >= 1"),
            (0 < self.collapse_share < 1, "0 < collapse_share < 1"),
            (0 < self.level_gap < self.lr_high - self.lr_safe, "0 < level_gap < lr_high - lr_safe"),
            (self.brokers_min >= 1, "brokers_min >= 1"),
            (self.topics_per_step >= 1, "topics_per_step >= 1"),
        )
        for kept, rule in rules:
            if not kept:
                raise UsageError(f"Dynamoth's thresholds break the rule {rule}: change one of them")

    @property
    def lr_fill(self) -> float:
        """How far a move that is not urgent may fill a broker: noise must not lift it to `lr_high` at once."""
        return (self.lr_safe + self.lr_high) / 2

    @property
    def below_high(self) -> float:
        """The highest load ratio that is below `lr_high` beyond the rounding of sums."""
        return self.lr_high - 1e-9
