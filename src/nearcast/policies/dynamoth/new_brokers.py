"""Brokers that have just joined are given load at once: one that stays empty was rented for nothing."""

from __future__ import annotations

import numpy as np

from nearcast.core.proposal import Cause, Reason
from nearcast.policies.dynamoth.config import DynamothConfig
from nearcast.policies.dynamoth.draft import Draft
from nearcast.policies.dynamoth.level import Level
from nearcast.policies.loads import Flags


def use_new(draft: Draft, config: DynamothConfig) -> None:
    """Level brokers above `lr_safe` onto the new ones; then the busiest of the others while a new one is empty."""
    fresh = draft.loads.fresh & draft.usable
    donors = ~fresh & draft.usable
    if not fresh.any():
        return
    heavy = donors & (draft.ratio > config.lr_safe)
    if heavy.any():
        _level(draft, heavy, fresh, config)
    for donor in np.argsort(-draft.ratio, kind="stable").tolist():
        if donors[donor] and (fresh & (draft.output <= 0)).any():
            _level(draft, np.arange(len(donors)) == donor, fresh & (draft.output <= 0), config)


def _level(draft: Draft, donors: Flags, fresh: Flags, config: DynamothConfig) -> None:
    mean = draft.mean_of(donors | fresh)
    highest = float(draft.ratio[donors].max())
    reason = Reason(Cause.NEW_BROKER, "load_ratio", highest, min(config.lr_safe, mean))
    # A cluster at rest has small differences only: half of the mean is then as good as the usual gap.
    Level(draft, donors, fresh, min(config.level_gap, mean / 2)).run(mean, reason)
