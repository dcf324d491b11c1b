"""Algorithm 1: which topics are replicated, in which mode, over how many and which brokers (section III.B.1).

`wishes` decides for all topics at once. `replicate` chooses the brokers and changes the draft: it adds the least loaded
brokers first, and removes the busiest first.
"""

from __future__ import annotations

import msgspec
import numpy as np

from nearcast.core.model.placement import Mode
from nearcast.core.model.planning import Cause, Reason
from nearcast.policies.dynamoth.draft import Draft, DynamothConfig
from nearcast.policies.loads import NOWHERE, Flags, Floats, Loads, Numbers

_ROUNDING = 1e-9  # a ratio of exactly three thresholds needs three brokers, whatever its last bit


# --- which topics


class Wish(msgspec.Struct, frozen=True):
    """A topic whose replication is not what it should be."""

    topic: int
    mode: Mode
    count: int
    grows: bool  # it needs more brokers or another mode; otherwise fewer brokers
    reason: Reason


def wishes(loads: Loads, config: DynamothConfig) -> list[Wish]:
    """All topics to change, those that free capacity first, then the busiest first."""
    view = _View(loads, config)
    mode, count = view.mode(), view.count()
    count[mode == _SINGLE] = 1
    movable = (loads.home != NOWHERE) | (view.current != _SINGLE)
    differs = np.flatnonzero(movable & ((mode != view.current) | (count != view.now)))
    found = [view.wish(topic, _MODES[mode[topic]], int(count[topic])) for topic in differs.tolist()]
    return sorted(found, key=lambda wish: (wish.grows, -loads.traffic[wish.topic], wish.topic))


_MODES = (Mode.SINGLE, Mode.ALL_SUBSCRIBERS, Mode.ALL_PUBLISHERS)
_SINGLE, _SUBS, _PUBS = range(3)


class _View:
    """The conditions of Algorithm 1 as columns over all topics."""

    def __init__(self, loads: Loads, config: DynamothConfig) -> None:
        self.loads, self.config = loads, config
        self.publications, self.subscribers = loads.publications, loads.subscribers
        # Lines 2 and 3. Less than one per second or one subscriber counts as one: rates are means over seconds, and a
        # topic with rare publications does not deserve more brokers than one with one publication per second.
        self.p_ratio: Floats = self.publications / np.maximum(self.subscribers, 1.0)
        self.s_ratio: Floats = self.subscribers / np.maximum(self.publications, 1.0)
        self.room = config.lr_safe * float(loads.capacity.mean())  # what one broker may send of one topic
        self.current, self.now = _current(loads)
        subs, pubs = self._threshold_share(_SUBS), self._threshold_share(_PUBS)
        many_publications = self.publications > subs * config.publication_threshold
        many_subscribers = self.subscribers > pubs * config.subscriber_threshold
        heard = self.subscribers > 0  # a topic without subscribers has no output to share
        self.publishing: Flags = many_publications & (self.p_ratio > subs * config.all_subs_threshold) & heard
        self.both: Flags = many_publications & (self.subscribers > subs * config.subscriber_threshold)
        self.broadcast: Flags = many_subscribers & (self.s_ratio > pubs * config.all_pubs_threshold)
        replicated = np.where(self.current != _SINGLE, config.collapse_share, 1.0)
        self.large: Flags = loads.traffic > replicated * self.room

    def _threshold_share(self, mode: int) -> Floats:
        """Thresholds are lower for topics already in the mode, so that none flaps."""
        return np.where(self.current == mode, self.config.collapse_share, 1.0)

    def mode(self) -> Numbers:
        """Lines 4, 8 and 12, the case that both are large, and our own rule for topics too large for a broker."""
        divided = np.where(
            self.current != _SINGLE,
            self.current,
            np.where((self.subscribers > self.publications) | (self._parts(_SUBS) < 2), _PUBS, _SUBS),
        )
        wanted = np.select(
            [self.publishing | self.both, self.broadcast, self.large], [_SUBS, _PUBS, divided], _SINGLE
        ).astype(np.int32)
        parts = np.where(wanted == _SUBS, self._parts(_SUBS), self._parts(_PUBS))
        most = np.minimum(parts, len(self.loads.brokers))
        return np.where(most < 2, _SINGLE, wanted).astype(np.int32)

    def _parts(self, mode: int) -> Floats:
        """How many shares the mode can divide the topic into.

        A publisher writes to one broker, or a subscriber reads from one. If publishers were not counted, there is no
        limit.
        """
        if mode == _PUBS:
            return np.ceil(self.subscribers)
        return np.where(self.loads.publishers > 0, np.ceil(self.loads.publishers), np.inf)

    def count(self) -> Numbers:
        """Lines 5 and 9, rounded up. It stays unchanged while it is between the need without and with reserve."""
        mode, need = self.mode(), self._need()
        up = np.ceil(need - _ROUNDING)
        down = np.ceil(need / self.config.collapse_share - _ROUNDING)
        count = np.where(mode == self.current, np.clip(self.now, up, np.maximum(up, down)), up)
        parts = np.where(mode == _SUBS, self._parts(_SUBS), self._parts(_PUBS))
        most = np.minimum(parts, len(self.loads.brokers))
        return np.minimum(np.maximum(count, 2), most).astype(np.int32)

    def _need(self) -> Floats:
        config = self.config
        by_publications = self.publications / config.publication_threshold
        by_subscribers = self.subscribers / config.subscriber_threshold
        # A broker that would get less than the threshold's amount is not worth it.
        line_5 = np.minimum(self.p_ratio / config.all_subs_threshold, by_publications)
        line_9 = np.minimum(self.s_ratio / config.all_pubs_threshold, by_subscribers)
        needs = np.select([self.both, self.publishing, self.broadcast], [by_publications, line_5, line_9], 0.0)
        bandwidth: Floats = np.maximum(needs, self.loads.traffic / self.room)
        return bandwidth

    def wish(self, topic: int, mode: Mode, count: int) -> Wish:
        shrinks = count < self.now[topic]
        reason = self._cooled(topic) if shrinks else self._grown(topic)
        return Wish(topic, mode, count, not shrinks, reason)

    def _grown(self, topic: int) -> Reason:
        config = self.config
        if self.both[topic]:
            value, threshold = self.publications[topic], config.publication_threshold
            return Reason(Cause.MANY_PUBLICATIONS, "publications_per_s", float(value), threshold)
        if self.publishing[topic]:
            value, threshold = self.p_ratio[topic], config.all_subs_threshold
            return Reason(Cause.MANY_PUBLICATIONS, "publications_per_s per subscriber", float(value), threshold)
        if self.broadcast[topic]:
            value, threshold = self.s_ratio[topic], config.all_pubs_threshold
            return Reason(Cause.MANY_SUBSCRIBERS, "subscribers per publication_per_s", float(value), threshold)
        return Reason(Cause.HIGH_LOAD, "topic output_bytes_per_s", float(self.loads.traffic[topic]), self.room)

    def _cooled(self, topic: int) -> Reason:
        """The measure that fell below its threshold for one broker fewer; of several, the one closest to it."""
        config, loads = self.config, self.loads
        measures = [("topic output_bytes_per_s", loads.traffic, self.room)]
        if self.current[topic] == _PUBS:
            measures.append(("subscribers per publication_per_s", self.s_ratio, config.all_pubs_threshold))
            measures.append(("subscribers", self.subscribers, config.subscriber_threshold))
        else:
            measures.append(("publications_per_s per subscriber", self.p_ratio, config.all_subs_threshold))
            measures.append(("publications_per_s", self.publications, config.publication_threshold))
        fewer = config.collapse_share * max(1, int(self.now[topic]) - 1)
        reasons = [Reason(Cause.COOLED, name, float(values[topic]), fewer * limit) for name, values, limit in measures]
        return max(reasons, key=lambda reason: (reason.value <= reason.threshold, reason.value / reason.threshold))


def _current(loads: Loads) -> tuple[Numbers, Numbers]:
    """Current mode and number of brokers of every topic."""
    mode = np.full(len(loads.topics), _SINGLE, np.int32)
    count = np.ones(len(loads.topics), np.int32)
    for topic, brokers in loads.replicas.items():
        mode[topic] = _MODES.index(loads.placements[topic].mode)
        count[topic] = len(brokers)
    return mode, count


# --- which brokers


def replicate(draft: Draft, config: DynamothConfig) -> list[Wish]:
    """Channel-level rebalancing. Returns the wishes that were not granted because brokers are too few or too busy."""
    return [wish for wish in wishes(draft.loads, config) if not _fulfil(draft, wish, config)]


def _fulfil(draft: Draft, wish: Wish, config: DynamothConfig) -> bool:
    brokers = _chosen(draft, wish)
    mode = wish.mode if len(brokers) > 1 else Mode.SINGLE
    if not brokers:
        return False
    if (mode, brokers) != (draft.mode_of(wish.topic), draft.brokers_of(wish.topic)):
        # A topic that overloads its brokers may go where it also overloads brokers, but less so.
        limit = max(config.below_high, draft.highest_ratio) if wish.grows else config.lr_fill
        if not draft.fits(wish.topic, brokers, limit):
            return False
        draft.place(wish.topic, mode, brokers, wish.reason)
    return len(brokers) >= wish.count


def _chosen(draft: Draft, wish: Wish) -> tuple[int, ...]:
    """As many brokers as wished, or as there are. Those that stay keep their order: clients choose by position."""
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
