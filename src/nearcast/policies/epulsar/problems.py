"""What a plan does not reach, in words, each with the remedy."""

from __future__ import annotations

import numpy as np

from nearcast.core.model.planning import Snapshot
from nearcast.policies.epulsar.draft import Draft
from nearcast.policies.epulsar.overload import MEASURES, overloads
from nearcast.policies.epulsar.reach import Reach, Today


class Problems:
    """One sentence for each kind of problem, with its number and one example."""

    def __init__(self, snapshot: Snapshot, draft: Draft, today: Today) -> None:
        self._snapshot = snapshot
        self._draft = draft
        self._today = today
        self._hopeless: list[tuple[int, str]] = []  # topics that no broker keeps within their bound; the best broker
        self._full: list[int] = []  # topics whose brokers have no room

    def hopeless(self, topic: int, reach: Reach, place: int) -> None:
        """No broker that the topic may be on keeps its bound."""
        # Only the first is shown, so only its best broker is looked for.
        best = next(iter(reach.ranked(place)), None) if not self._hopeless else None
        said = f"the best, {self._draft.loads.brokers[best[0]]}, would take {best[1] * 1e3:.4g} ms" if best else ""
        self._hopeless.append((topic, said or "the latency over others is not known"))

    def full(self, topic: int) -> None:
        """The brokers that the topic may be on have no room for it, so it stays."""
        self._full.append(topic)

    def text(self) -> str:
        said = (self._missed(), self._crowded(), self._replicated(), self._leftover(), self._overloaded())
        return "; ".join(filter(None, (*said, self._memory())))

    def _missed(self) -> str:
        if not self._hopeless:
            return ""
        topic, best = self._hopeless[0]
        bound_ms = self._today.bound_s[topic] * 1e3
        return (
            f"{_topics(len(self._hopeless), 'find')} no broker that keeps the bound, such as "
            f"{self._name(topic)} within {bound_ms:.4g} ms ({best}): start one nearer to its clients, or allow more"
        )

    def _crowded(self) -> str:
        violated = self._today.violated  # of all topics, computed
        missed = [topic for topic in self._full if violated[topic]]
        if not missed:
            return ""
        return (
            f"{_topics(len(missed), 'must', 'must')} wait, such as {self._name(missed[0])}: the brokers that would "
            "keep the bound have no room; add one at their site"
        )

    def _replicated(self) -> str:
        missed = np.flatnonzero(self._today.violated & (self._draft.loads.home < 0)).tolist()
        if not missed:
            return ""
        return (
            f"of the topics on several brokers, {_topics(len(missed), 'miss', 'misses')} the bound, such as "
            f"{self._name(missed[0])}: this policy moves none of those; put it on one broker"
        )

    def _leftover(self) -> str:
        draining = self._draft.loads.draining
        left = [topic for topic in self._full if draining[self._draft.home[topic]]]
        if not left:
            return ""
        broker = self._draft.loads.brokers[self._draft.home[left[0]]]
        return f"{_topics(len(left), 'fit')} on no broker but {broker}: add one, or keep {broker}"

    def _overloaded(self) -> str:
        over = overloads(self._draft)
        if not over:
            return ""
        broker, why = next(iter(over.items()))
        said = f"{self._draft.loads.brokers[broker]} stays at {MEASURES[why[0].constraint]} {why[0].value:.4g}, "
        said += f"above {why[0].limit:.4g}"
        if self._draft.rate_on[broker] <= 0:
            return f"{said}: its load comes from no topic; check what else runs on its server"
        if self._snapshot.coming > 0:
            return f"{said}: a new broker is coming"
        return f"{said}: no other broker has room for what it could give; add brokers, or larger ones"

    def _memory(self) -> str:
        high = self._draft.config.resource_high
        full = [name for name, row in self._snapshot.brokers.items() if row.memory_share > high]
        if not full:
            return ""
        name = min(full)
        share = self._snapshot.brokers[name].memory_share
        return (
            f"{name} uses {share:.0%} of its memory, above {high:.0%}, and gets no more topics: moving some away would "
            "free little; let its logs retain less, or give it more"
        )

    def _name(self, topic: int) -> str:
        return repr(self._draft.loads.topics[topic])


def _topics(count: int, verb: str, verb_of_one: str = "") -> str:
    return f"1 topic {verb_of_one or f'{verb}s'}" if count == 1 else f"{count:,} topics {verb}"
