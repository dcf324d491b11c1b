"""Levelling: what to do where Algorithm 2 has no answer, because the brokers have no room below `lr_high`.

Load goes from brokers above the mean of those taking part to brokers below it: the busiest topic that passes neither
beyond the mean; if there is none, one that does but still leaves both lower than the donor was; if there is none, two
topics are exchanged. A difference below `level_gap` is left alone, and each step is a function of the state alone, so
that a second call finds nothing to do. Every step replaces the donor's ratio by lower ones, so it ends.
"""

from __future__ import annotations

import numpy as np

from nearcast.core.proposal import Reason
from nearcast.policies.dynamoth.draft import Draft
from nearcast.policies.dynamoth.shelf import Item
from nearcast.policies.loads import Flags

# A topic below this share of what its broker has above the mean would be one of a thousand moves: not worth it.
_WORTH = 1e-3

Step = list[tuple[int, int, int]]  # (topic, from, to)


class Level:
    """One levelling between donors and receivers."""

    def __init__(self, draft: Draft, donors: Flags, receivers: Flags, gap: float) -> None:
        self._draft = draft
        self._donors = donors
        self._receivers = receivers & draft.usable
        self._gap = gap
        self._taking_part = (donors | self._receivers) & draft.usable
        self._mean = 0.0

    def run(self, enter: float, reason: Reason) -> None:
        """Relieve donors with a ratio of at least `enter`, the heaviest first, as far as it goes."""
        stuck: set[int] = set()
        while True:
            # A broker that is being removed may give, and then the mean of the others rises.
            self._mean = self._draft.mean_of(self._taking_part)
            donor = self._heaviest(stuck)
            if donor is None or self._draft.ratio[donor] < max(enter, self._mean + self._gap):
                return
            step = self._within_mean(donor) or self._beyond_mean(donor) or self._exchange(donor)
            if step:
                for topic, source, target in step:
                    self._draft.move(topic, source, target, reason)
                stuck.clear()  # who had no partner may have one now
            else:
                stuck.add(donor)

    def _heaviest(self, stuck: set[int]) -> int | None:
        candidates = [broker for broker in np.flatnonzero(self._donors).tolist() if broker not in stuck]
        return max(candidates, key=lambda broker: (self._draft.ratio[broker], -broker), default=None)

    def _partners(self, donor: int, below: float) -> list[int]:
        """Receivers with a ratio below, the lightest first."""
        ratio = self._draft.ratio
        found = np.flatnonzero(self._receivers & (ratio < below))
        return [broker for broker in found[np.argsort(ratio[found], kind="stable")].tolist() if broker != donor]

    def _surplus(self, donor: int) -> float:
        return float((self._draft.ratio[donor] - self._mean) * self._draft.loads.capacity[donor])

    def _passing(self, donor: int, target: int) -> float:
        """Bytes per second that lift the target, and lower the donor, to the mean at most."""
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
        """The step that leaves the heavier of the two lowest."""
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
        """Two topics change places, so that the heavier of the two brokers is left lowest."""
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
        """Which of both to exchange, and the ratio of the heavier broker after it."""
        ratio, capacity = self._draft.ratio, self._draft.loads.capacity
        even = (ratio[donor] - ratio[target]) / (1 / capacity[donor] + 1 / capacity[target])
        given = np.array([share for share, _ in heavy])
        taken = np.array([share for share, _ in light])
        # The two partners of each topic whose difference is next to what makes both brokers even, below and above.
        right = np.searchsorted(taken, given - even)
        partners = np.clip(np.stack((right, right - 1)), 0, len(taken) - 1)
        passed = given - taken[partners]
        worst = np.maximum(ratio[donor] - passed / capacity[donor], ratio[target] + passed / capacity[target])
        best = np.unravel_index(int(worst.argmin()), worst.shape)
        return int(best[1]), int(partners[best]), float(worst[best])
