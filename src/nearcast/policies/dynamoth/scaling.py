"""Scaling: when to rent a broker (section III.B.3), and when and how to remove one (section III.B.4).

A broker is rented only if no move helps ("if this is not possible"), and only if a new broker would help.

The low-load algorithm slowly empties the least loaded broker for as long as the load stays low. The global load ratio
is the load of all brokers over their total capacity. With equal brokers that is the paper's mean of ratios. Unlike that
mean, it does not change when topics move between unequal brokers, so emptying a broker cannot interrupt itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

import msgspec
import numpy as np

from nearcast.core.model.placement import Mode
from nearcast.core.model.planning import Cause, Reason
from nearcast.policies.dynamoth.draft import Draft, DynamothConfig

# --- renting


def single_move(draft: Draft, config: DynamothConfig) -> Draft | None:
    """The draft with one topic, or one share of a replicated one, moved so that every ratio is below `lr_high`.

    None if there is no such move. While there is one, no broker may be rented. Algorithm 2 can miss it, because it
    takes the busiest topic first.
    """
    high = np.flatnonzero(draft.ratio >= config.lr_high)
    if len(high) != 1:
        return None  # one move relieves only one broker
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


# --- removing


_CANDIDATES = 5  # how many brokers to try in all, if topics of the least loaded fit nowhere

Place = tuple[int, Mode, tuple[int, ...]]


class Removal(msgspec.Struct, frozen=True):
    """Where the topics of a broker would go, the busiest first."""

    broker: int
    places: list[Place]
    left: list[int]  # topics that fit nowhere

    def begin(self, draft: Draft, at_most: int, reason: Reason) -> int:
        """Place the first of them; returns how many."""
        for topic, mode, brokers in self.places[:at_most]:
            draft.place(topic, mode, brokers, reason)
        return min(at_most, len(self.places))


def global_ratio(draft: Draft) -> float:
    return float(draft.output.sum() / draft.loads.capacity.sum())


def low_reason(draft: Draft, config: DynamothConfig) -> Reason:
    return Reason(Cause.LOW_LOAD, "global load_ratio", global_ratio(draft), config.lr_low)


def removal(draft: Draft, broker: int, limit: float) -> Removal:
    """Empty the broker in a copy of the draft, without any other broker going above the limit."""
    trial = draft.copy()
    trial.usable[broker] = False
    found = Removal(broker, [], [])
    reason = Reason(Cause.LOW_LOAD, "", 0.0, 0.0)
    for _, topic in draft.topics_on(broker):
        place = _elsewhere(trial, topic, broker, limit)
        if place is None:
            found.left.append(topic)
        else:
            trial.place(*place, reason)
            found.places.append(place)
    return found


def _elsewhere(draft: Draft, topic: int, broker: int, limit: float) -> Place | None:
    """Replace leaving brokers by the lightest; if none has room, the topic keeps only its other brokers."""
    for brokers in _options(draft, topic, broker):
        if draft.fits(topic, brokers, limit):
            return topic, draft.mode_of(topic) if len(brokers) > 1 else Mode.SINGLE, brokers
    return None


def _options(draft: Draft, topic: int, broker: int) -> Iterator[tuple[int, ...]]:
    now = draft.brokers_of(topic)
    stay = [old for old in now if old != broker and draft.usable[old]]
    by_load = np.argsort(draft.ratio, kind="stable").tolist()
    others = [other for other in by_load if draft.usable[other] and other not in now]
    gone = len(now) - len(stay)
    if gone > 1:
        yield _substituted(now, stay, others[:gone])
    for other in others:
        yield _substituted(now, stay, [other])
    if stay:
        yield tuple(stay)


def _substituted(now: tuple[int, ...], stay: list[int], come: list[int]) -> tuple[int, ...]:
    """Brokers that stay keep their position, because clients choose by it."""
    coming = iter(come)
    places = [old if old in stay else next(coming, None) for old in now]
    return tuple(broker for broker in places if broker is not None)


def removable(draft: Draft, config: DynamothConfig) -> Removal | None:
    """The least loaded broker whose topics all fit on the others below `lr_safe`.

    None if the cluster has no broker to spare.
    """
    loads = draft.loads
    if int(draft.usable.sum()) <= config.brokers_min or global_ratio(draft) >= config.lr_low:
        return None
    candidates = [broker for broker in np.argsort(draft.ratio, kind="stable").tolist() if draft.usable[broker]]
    for broker in [broker for broker in candidates if loads.removable[broker]][:_CANDIDATES]:
        found = removal(draft, broker, config.lr_safe)
        if not found.left:
            return found
    return None
