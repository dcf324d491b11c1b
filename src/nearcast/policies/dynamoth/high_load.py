"""Algorithm 2: topics leave brokers at or above `lr_high` until those are below `lr_safe` (section III.B.3)."""

from __future__ import annotations

import numpy as np

from nearcast.core.proposal import Cause, Reason
from nearcast.policies.dynamoth.config import DynamothConfig
from nearcast.policies.dynamoth.draft import Draft
from nearcast.policies.dynamoth.level import Level
from nearcast.policies.dynamoth.shelf import Item


def relieve(draft: Draft, config: DynamothConfig) -> bool:
    """Change the draft until every estimated load ratio is below `lr_high`. False if Algorithm 2 does not get there;
    the draft is then half done."""
    # A cluster whose mean is above lr_safe cannot bring every broker below it: the mean is as low as it gets.
    safe = max(config.lr_safe, draft.mean_ratio)
    if safe >= config.lr_high:
        return False
    while draft.highest_ratio >= config.lr_high:
        busiest = int(draft.ratio.argmax())
        reason = Reason(Cause.HIGH_LOAD, "load_ratio", float(draft.ratio[busiest]), config.lr_high)
        while draft.ratio[busiest] >= safe:
            found = _next(draft, busiest, safe, config)
            if found is None:
                break
            (_, topic), target = found
            draft.move(topic, busiest, target, reason)
        if draft.ratio[busiest] >= config.lr_high:
            return False
    return True


def _next(draft: Draft, busiest: int, safe: float, config: DynamothConfig) -> tuple[Item, int] | None:
    """The busiest topic that the lightest broker can take. Up to `safe` if possible; below `lr_high` only to bring the
    busiest below it too, or the next plan would move topics back."""
    limits = (safe, config.below_high) if draft.ratio[busiest] >= config.lr_high else (safe,)
    for limit in limits:
        for target in np.argsort(draft.ratio, kind="stable").tolist():
            room = (limit - draft.ratio[target]) * draft.loads.capacity[target]
            if room <= 0:
                break
            if target == busiest or not draft.usable[target]:
                continue
            item = draft.shelf(busiest).busiest(room, 0.0, draft.may_move(busiest, target))
            if item is not None:
                return item, target
    return None


def lowered(draft: Draft, config: DynamothConfig) -> Draft:
    """The draft with Algorithm 2 done if that brings every ratio below `lr_high`; else levelled, as far as it goes."""
    attempt = draft.copy()
    if relieve(attempt, config):
        return attempt
    levelled = draft.copy()
    everybody = np.ones(len(draft.ratio), np.bool_)
    reason = Reason(Cause.HIGH_LOAD, "load_ratio", draft.highest_ratio, config.lr_high)
    Level(levelled, everybody, draft.usable, config.level_gap).run(config.lr_high, reason)
    attempt = levelled.copy()
    return attempt if relieve(attempt, config) else levelled
