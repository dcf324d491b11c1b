"""When to rent: only if no move helps, and only if a broker does (section III.B.3, "if this is not possible")."""

from __future__ import annotations

from math import ceil

import numpy as np

from nearcast.core.proposal import Cause, Reason
from nearcast.policies.dynamoth.config import DynamothConfig
from nearcast.policies.dynamoth.draft import Draft


def single_move(draft: Draft, config: DynamothConfig) -> Draft | None:
    """The draft with one topic, or one share of a replicated one, moved so that every ratio is below `lr_high`.

    None if there is no such move. No broker may be rented while there is one, and Algorithm 2, which takes the busiest
    topic first, can miss it.
    """
    high = np.flatnonzero(draft.ratio >= config.lr_high)
    if len(high) != 1:
        return None  # a move lowers one broker only
    source = int(high[0])
    capacity = draft.loads.capacity
    room = np.where(draft.usable, (config.below_high - draft.ratio) * capacity, -np.inf)
    room[source] = -np.inf
    excess = float((draft.ratio[source] - config.below_high) * capacity[source])
    targets = np.argsort(-room, kind="stable").tolist()
    shelf = draft.shelf(source)
    for target in targets:
        if room[target] <= excess:
            break
        item = shelf.lightest(excess, float(room[target]), draft.may_move(source, target))
        if item is not None:
            moved = draft.copy()
            reason = Reason(Cause.HIGH_LOAD, "load_ratio", float(draft.ratio[source]), config.lr_high)
            moved.move(item[1], source, target, reason)
            return moved
    return None


def would_help(draft: Draft, config: DynamothConfig) -> bool:
    """Whether empty brokers of the usual size could take enough from a broker at or above `lr_high`."""
    capacity = draft.loads.capacity
    largest = config.below_high * float(capacity.mean())
    for broker in np.flatnonzero(draft.ratio >= config.lr_high).tolist():
        shelf = draft.shelf(broker)
        movable = sum(share for share, _ in (*shelf.single, *shelf.replicated) if share <= largest)
        if movable > (draft.ratio[broker] - config.below_high) * capacity[broker]:
            return True
    return False


def how_many(draft: Draft, config: DynamothConfig, spare: int) -> int:
    """As many as bring the mean below `lr_high`, at least one."""
    needed = ceil(float(draft.output.sum()) / (config.lr_high * float(draft.loads.capacity.mean())))
    return max(1, min(spare, needed - int(draft.usable.sum())))
