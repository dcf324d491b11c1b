"""System-level rebalancing: Algorithm 2 (section III.B.3), and levelling where Algorithm 2 finds no solution.

Algorithm 2 takes topics off brokers at or above `lr_high` until those are below `lr_safe`. Brokers that have just
joined are given load at once: a broker that stays empty was rented for nothing.
"""

from __future__ import annotations

import numpy as np

from nearcast.core.model.planning import Cause, Reason
from nearcast.policies.dynamoth.draft import Draft, DynamothConfig, Item
from nearcast.policies.loads import Flags

# A topic below this share of its broker's excess over the mean is not worth moving: it would take a thousand of them.
_WORTH = 1e-3

Step = list[tuple[int, int, int]]  # (topic, from, to)


# --- levelling


class Level:
    """One levelling between donors and receivers, for brokers that have no room below `lr_high`.

    Load goes from brokers above the mean of the participants to brokers below it: the busiest topic that takes neither
    past the mean; if there is none, one that does but still leaves both lower than the donor was; if there is none, two
    topics are exchanged. Differences below `level_gap` are left alone, and each step depends only on the state, so a
    second call finds nothing to do. Every step replaces the donor's ratio by lower ones, so levelling ends.
    """

    def __init__(self, draft: Draft, donors: Flags, receivers: Flags, gap: float) -> None:
        self._draft = draft
        self._donors = donors
        self._receivers = receivers & draft.usable
        self._gap = gap
        self._taking_part = (donors | self._receivers) & draft.usable
        self._mean = 0.0

    def run(self, enter: float, reason: Reason) -> None:
        """Relieve donors with a ratio of at least `enter`, the heaviest first, as far as possible."""
        stuck: set[int] = set()
        while True:
            # A broker that is being removed may be a donor; then the mean of the others rises.
            self._mean = self._draft.mean_of(self._taking_part)
            donor = self._heaviest(stuck)
            if donor is None or self._draft.ratio[donor] < max(enter, self._mean + self._gap):
                return
            step = self._within_mean(donor) or self._beyond_mean(donor) or self._exchange(donor)
            if step:
                for topic, source, target in step:
                    self._draft.move(topic, source, target, reason)
                stuck.clear()  # donors that had no partner may have one now
            else:
                stuck.add(donor)

    def _heaviest(self, stuck: set[int]) -> int | None:
        candidates = [broker for broker in np.flatnonzero(self._donors).tolist() if broker not in stuck]
        return max(candidates, key=lambda broker: (self._draft.ratio[broker], -broker), default=None)

    def _partners(self, donor: int, below: float) -> list[int]:
        """Receivers with a lower ratio, the lightest first."""
        ratio = self._draft.ratio
        found = np.flatnonzero(self._receivers & (ratio < below))
        return [broker for broker in found[np.argsort(ratio[found], kind="stable")].tolist() if broker != donor]

    def _surplus(self, donor: int) -> float:
        return float((self._draft.ratio[donor] - self._mean) * self._draft.loads.capacity[donor])

    def _passing(self, donor: int, target: int) -> float:
        """How many bytes per second can move without taking the target above the mean or the donor below it."""
        room = (self._mean - self._draft.ratio[target]) * self._draft.loads.capacity[target]
        return min(self._surplus(donor), float(room))

    def _within_mean(self, donor: int) -> Step:
        shelf, least = self._draft.shelf(donor), _WORTH * self._surplus(donor)
        for target in self._partners(donor, self._mean):
            item = shelf.busiest(self._passing(donor, target), least, self._draft.may_move(donor, target))
            if item is not None:
                return [(item[1], donor, target)]
        return []

    def _beyond_mean(self, donor: int) -> Step:
        """The move after which the heavier of the two brokers is lightest."""
        highest = float(self._draft.ratio[donor]) - self._gap
        best: tuple[float, Step] = (highest, [])
        for target in self._partners(donor, highest):
            ratio, capacity = float(self._draft.ratio[target]), float(self._draft.loads.capacity[target])
            above, most = max(0.0, self._passing(donor, target)), (highest - ratio) * capacity
            item = self._draft.shelf(donor).lightest(above, most, self._draft.may_move(donor, target))
            if item is not None:
                left = float(self._draft.ratio[donor]) - item[0] / float(self._draft.loads.capacity[donor])
                worst = max(left, ratio + item[0] / capacity)
                if worst <= best[0]:
                    best = (worst, [(item[1], donor, target)])
        return best[1]

    def _exchange(self, donor: int) -> Step:
        """The exchange of two topics after which the heavier of the two brokers is lightest."""
        highest = float(self._draft.ratio[donor]) - self._gap
        best: tuple[float, Step] = (highest, [])
        if not self._draft.usable[donor]:
            return []
        for target in self._partners(donor, highest):
            heavy, light = self._movable(donor, target), self._movable(target, donor)
            if not heavy or not light:
                continue
            given, taken, worst = self._pair(donor, target, heavy, light)
            if worst <= best[0]:
                best = (worst, [(heavy[given][1], donor, target), (light[taken][1], target, donor)])
        return best[1]

    def _movable(self, source: int, target: int) -> list[Item]:
        shelf, allowed = self._draft.shelf(source), self._draft.may_move(source, target)
        return sorted([*shelf.single, *(item for item in shelf.replicated if allowed(item[1]))])

    def _pair(self, donor: int, target: int, heavy: list[Item], light: list[Item]) -> tuple[int, int, float]:
        """Which pair to exchange, and the ratio of the heavier broker afterwards."""
        ratio, capacity = self._draft.ratio, self._draft.loads.capacity
        even = (ratio[donor] - ratio[target]) / (1 / capacity[donor] + 1 / capacity[target])
        given = np.array([share for share, _ in heavy])
        taken = np.array([share for share, _ in light])
        # For each topic, the two partners whose difference comes closest to levelling both brokers: below and above.
        right = np.searchsorted(taken, given - even)
        partners = np.clip(np.stack((right, right - 1)), 0, len(taken) - 1)
        passed = given - taken[partners]
        worst = np.maximum(ratio[donor] - passed / capacity[donor], ratio[target] + passed / capacity[target])
        best = np.unravel_index(int(worst.argmin()), worst.shape)
        return int(best[1]), int(partners[best]), float(worst[best])


# --- Algorithm 2


def relieve(draft: Draft, config: DynamothConfig) -> bool:
    """Change the draft until every estimated load ratio is below `lr_high`.

    Returns False if Algorithm 2 does not get there; the draft is then half done.
    """
    # If the mean is above lr_safe, not every broker can be below lr_safe: the mean is the lowest possible limit.
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
    """The busiest topic that the lightest broker can take.

    The target is filled up to `safe` if possible. It is filled further, but below `lr_high`, only if that brings the
    busiest below `lr_high` too; otherwise the next plan would move topics back.
    """
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
    """The draft after Algorithm 2 if that brings every ratio below `lr_high`; else levelled as far as possible."""
    attempt = draft.copy()
    if relieve(attempt, config):
        return attempt
    levelled = draft.copy()
    everybody = np.ones(len(draft.ratio), np.bool_)
    reason = Reason(Cause.HIGH_LOAD, "load_ratio", draft.highest_ratio, config.lr_high)
    Level(levelled, everybody, draft.usable, config.level_gap).run(config.lr_high, reason)
    attempt = levelled.copy()
    return attempt if relieve(attempt, config) else levelled


# --- brokers that have just joined


def use_new(draft: Draft, config: DynamothConfig) -> None:
    """Level brokers above `lr_safe` onto the new ones; then, while new ones are empty, all others, busiest first."""
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
    # A cluster with little load has small differences only: half of the mean then serves as the gap.
    Level(draft, donors, fresh, min(config.level_gap, mean / 2)).run(mean, reason)
