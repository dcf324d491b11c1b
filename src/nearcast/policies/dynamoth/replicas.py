"""The brokers of replicated topics: the least loaded first in, the busiest first out (section III.B.1)."""

from __future__ import annotations

from nearcast.core.placement import Mode
from nearcast.policies.dynamoth.config import DynamothConfig
from nearcast.policies.dynamoth.draft import Draft
from nearcast.policies.dynamoth.replication import Wish, wishes


def replicate(draft: Draft, config: DynamothConfig) -> list[Wish]:
    """Channel-level rebalancing. Returns the wishes that were not fulfilled: the brokers are too few, or too busy."""
    return [wish for wish in wishes(draft.loads, config) if not _fulfil(draft, wish, config)]


def _fulfil(draft: Draft, wish: Wish, config: DynamothConfig) -> bool:
    brokers = _chosen(draft, wish)
    mode = wish.mode if len(brokers) > 1 else Mode.SINGLE
    if not brokers:
        return False
    if (mode, brokers) != (draft.mode_of(wish.topic), draft.brokers_of(wish.topic)):
        # A topic that is too much for its brokers may go where it is too much as well, but less so.
        limit = max(config.below_high, draft.highest_ratio) if wish.grows else config.lr_fill
        if not draft.fits(wish.topic, brokers, limit):
            return False
        draft.place(wish.topic, mode, brokers, wish.reason)
    return len(brokers) >= wish.count


def _chosen(draft: Draft, wish: Wish) -> tuple[int, ...]:
    """As many as wished, or as there are. Those that stay keep their order: clients choose among them by position."""
    now = draft.brokers_of(wish.topic)
    share = draft.share(wish.topic)
    ratio = draft.ratio.tolist()
    for broker in now:
        ratio[broker] -= share / float(draft.loads.capacity[broker])
    by_load = sorted(range(len(ratio)), key=lambda broker: (ratio[broker], broker))
    usable = [broker for broker in by_load if draft.usable[broker]]
    stay = [broker for broker in usable if broker in now][: wish.count]
    come = [broker for broker in usable if broker not in now][: wish.count - len(stay)]
    return (*(broker for broker in now if broker in stay), *come)
