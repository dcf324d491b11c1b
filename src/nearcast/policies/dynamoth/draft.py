"""The draft: the plan P* while it is being made (section III.B.3); and the thresholds."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable
from math import inf

import msgspec
import numpy as np

from nearcast.core.model.placement import Mode
from nearcast.core.model.planning import PlaceTopic, Reason
from nearcast.errors import UsageError
from nearcast.policies.loads import NOWHERE, Flags, Floats, Loads

Item = tuple[float, int]  # the bytes per second this broker sends of a topic, and the topic's number
Allowed = Callable[[int], bool]


# --- shelf


class Shelf:
    """The loaded topics of one broker by share, so that the busiest one that fits is found without a search.

    There are two sorted lists, because topics that are only here are moved before shares of replicated ones.
    """

    __slots__ = ("replicated", "single")

    def __init__(self, single: Iterable[Item], replicated: Iterable[Item]) -> None:
        self.single = sorted(single)
        self.replicated = sorted(replicated)

    def copy(self) -> Shelf:
        other = Shelf((), ())
        other.single, other.replicated = self.single.copy(), self.replicated.copy()
        return other

    def put(self, item: Item, alone: bool) -> None:
        insort(self.single if alone else self.replicated, item)

    def take(self, item: Item, alone: bool) -> None:
        items = self.single if alone else self.replicated
        items.pop(bisect_left(items, item))

    def busiest(self, at_most: float, at_least: float, allowed: Allowed) -> Item | None:
        """The largest share in the range. A share of a replicated topic must be allowed at its destination."""
        end = bisect_right(self.single, (at_most, inf))
        if end and self.single[end - 1][0] >= at_least:
            return self.single[end - 1]
        for item in reversed(self.replicated[: bisect_right(self.replicated, (at_most, inf))]):
            if item[0] < at_least:
                break
            if allowed(item[1]):
                return item
        return None

    def lightest(self, above: float, at_most: float, allowed: Allowed) -> Item | None:
        """The smallest share in the range."""
        begin = bisect_right(self.single, (above, inf))
        if begin < len(self.single) and self.single[begin][0] <= at_most:
            return self.single[begin]
        for item in self.replicated[bisect_right(self.replicated, (above, inf)) :]:
            if item[0] > at_most:
                break
            if allowed(item[1]):
                return item
        return None


# --- draft


class Draft:
    """The plan while it is being made, with the load each broker would have.

    Every step of the policy reads the estimated load here and changes the draft, so the next step sees what the last
    one did. Estimated output = measured output - shares that leave + shares that come. A topic's load divides evenly
    over its brokers, in both modes of replication.
    """

    def __init__(self, loads: Loads) -> None:
        self.loads = loads
        self.output: Floats = loads.output.copy()  # estimated, bytes per second
        self.ratio: Floats = loads.output / loads.capacity  # estimated LR_i (equation 1)
        self.usable = ~loads.draining  # brokers that may be given topics
        self._home = loads.home.copy()
        self._replicas = dict(loads.replicas)
        self._placed: dict[int, tuple[Mode, Reason]] = {}
        self._shelves: dict[int, Shelf] = {}

    def copy(self) -> Draft:
        other = object.__new__(Draft)
        other.loads, other.usable = self.loads, self.usable.copy()
        other.output, other.ratio = self.output.copy(), self.ratio.copy()
        other._home, other._replicas, other._placed = self._home.copy(), self._replicas.copy(), self._placed.copy()
        other._shelves = {broker: shelf.copy() for broker, shelf in self._shelves.items()}
        return other

    # --- reading

    @property
    def highest_ratio(self) -> float:
        return float(self.ratio.max())

    @property
    def mean_ratio(self) -> float:
        """The ratio of every usable broker if their load were divided in proportion to their capacity."""
        return self.mean_of(self.usable)

    def mean_of(self, brokers: Flags) -> float:
        return float(self.output[brokers].sum() / self.loads.capacity[brokers].sum())

    def mode_of(self, topic: int) -> Mode:
        placed = self._placed.get(topic)
        return placed[0] if placed else self.loads.placements[topic].mode

    def brokers_of(self, topic: int) -> tuple[int, ...]:
        """The topic's brokers; none if the topic cannot be moved now."""
        home = int(self._home[topic])
        return self._replicas.get(topic, ()) if home == NOWHERE else (home,)

    def share(self, topic: int) -> float:
        """What each broker of the topic sends, in bytes per second."""
        return float(self.loads.traffic[topic]) / len(self.brokers_of(topic))

    def fits(self, topic: int, brokers: tuple[int, ...], limit: float) -> bool:
        """Whether no broker that would get more of the topic rises above the limit."""
        now, share = self.brokers_of(topic), self.share(topic)
        new_share = float(self.loads.traffic[topic]) / len(brokers)
        for broker in brokers:
            more = new_share - (share if broker in now else 0.0)
            if more > 0 and self.ratio[broker] + more / self.loads.capacity[broker] > limit:
                return False
        return True

    def may_move(self, source: int, target: int) -> Allowed:
        """The condition for moving a share of a replicated topic: its new brokers are different and all usable."""

        def allowed(topic: int) -> bool:
            brokers = self.brokers_of(topic)
            return target not in brokers and all(self.usable[broker] for broker in brokers if broker != source)

        return allowed

    def topics_on(self, broker: int) -> list[Item]:
        """All topics of the broker, the busiest share first, including idle ones."""
        items = [(self.share(topic), topic) for topic in np.flatnonzero(self._home == broker).tolist()]
        items += [(self.share(topic), topic) for topic, brokers in self._replicas.items() if broker in brokers]
        return sorted(items, key=lambda item: (-item[0], item[1]))

    def shelf(self, broker: int) -> Shelf:
        """The loaded topics of the broker; kept up to date from now on."""
        shelf = self._shelves.get(broker)
        if shelf is None:
            here = np.flatnonzero((self._home == broker) & (self.loads.traffic > 0))
            single = zip(self.loads.traffic[here].tolist(), here.tolist(), strict=True)
            shares = ((self.share(topic), topic) for topic, brokers in self._replicas.items() if broker in brokers)
            shelf = self._shelves[broker] = Shelf(single, (item for item in shares if item[0] > 0))
        return shelf

    # --- changing

    def move(self, topic: int, source: int, target: int, reason: Reason) -> None:
        """Replace the source by the target, for the whole topic or for one share of a replicated one."""
        brokers = tuple(target if broker == source else broker for broker in self.brokers_of(topic))
        self.place(topic, self.mode_of(topic), brokers, reason)

    def place(self, topic: int, mode: Mode, brokers: tuple[int, ...], reason: Reason) -> None:
        """Change a topic's placement. The first reason given for a topic stays, because it started the move."""
        before, share_before = self.brokers_of(topic), self.share(topic)
        for broker in before:
            self._add(broker, -share_before)
        if mode is Mode.SINGLE:
            self._home[topic] = brokers[0]
            self._replicas.pop(topic, None)
        else:
            self._home[topic] = NOWHERE
            self._replicas[topic] = brokers
        share = self.share(topic)
        for broker in brokers:
            self._add(broker, share)
        self._reshelve(topic, self.mode_of(topic), before, share_before, take=True)
        self._reshelve(topic, mode, brokers, share, take=False)
        self._placed[topic] = (mode, self._placed[topic][1] if topic in self._placed else reason)

    def _add(self, broker: int, output: float) -> None:
        self.output[broker] += output
        self.ratio[broker] = self.output[broker] / self.loads.capacity[broker]

    def _reshelve(self, topic: int, mode: Mode, brokers: tuple[int, ...], share: float, take: bool) -> None:
        if share <= 0:
            return
        for broker in brokers:
            shelf = self._shelves.get(broker)
            if shelf is not None:
                change = shelf.take if take else shelf.put
                change((share, topic), mode is Mode.SINGLE)

    # --- as a proposal

    def placements(self) -> list[PlaceTopic]:
        """What differs from the plan, in the order it was decided."""
        found = []
        for topic, (mode, reason) in self._placed.items():
            brokers, before = self.brokers_of(topic), self.loads.placements[topic]
            names = tuple(self.loads.brokers[broker] for broker in brokers)
            if mode is not before.mode or names != before.brokers:
                moved = self._moved(topic, brokers)
                found.append(PlaceTopic(self.loads.topics[topic], mode, names, reason, moved))
        return found

    def _moved(self, topic: int, brokers: tuple[int, ...]) -> float:
        """The traffic whose broker changes, in bytes per second."""
        home = int(self.loads.home[topic])
        before = self.loads.replicas[topic] if home == NOWHERE else (home,)
        traffic = float(self.loads.traffic[topic])
        new = traffic / len(brokers)
        kept = sum(min(new, traffic / len(before)) for broker in brokers if broker in before)
        return max(0.0, traffic - kept)

    def predicted(self) -> dict[str, float]:
        return dict(zip(self.loads.brokers, np.maximum(self.ratio, 0.0).tolist(), strict=True))


# --- thresholds


class DynamothConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds, with their sources and the rules between them.

    Load ratios are shares of a broker's outgoing capacity. "Code" means the constants of the authors' program.
    """

    lr_high: float = 0.80  # LR^high (III.B.3): a broker at or above it is relieved; code, "high load"
    lr_safe: float = 0.60  # LR^safe (III.B.3): relieve it until below this; code, "reduce"
    lr_low: float = 0.40  # III.B.4 gives no figure: two thirds of lr_safe, so that one broker in three can go
    all_subs_threshold: float = 1000.0  # publications per subscriber; half of what one broker handled in figure 4b
    publication_threshold: float = 1000.0  # publications per second; code
    all_pubs_threshold: float = 25.0  # subscribers per publication per second; half of what one handled in figure 4a
    subscriber_threshold: float = 250.0  # subscribers; half of what one broker handled in figure 4a
    collapse_share: float = 0.75  # replication ends, or shrinks, below this share of its threshold
    level_gap: float = 0.03  # load ratio: differences below it are not worth a move
    brokers_min: int = 1  # the policy never proposes fewer
    topics_per_step: int = 50  # III.B.4 "slowly": the most topics that leave a broker at once

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
        """How far a move that is not urgent may fill a broker: noise must not lift its ratio to `lr_high` at once."""
        return (self.lr_safe + self.lr_high) / 2

    @property
    def below_high(self) -> float:
        """The highest load ratio that is still below `lr_high` after sums are rounded."""
        return self.lr_high - 1e-9
