"""The plan: a versioned mapping topic -> placement. Topics it does not name live on their directory."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from nearcast.core.placement import Placement, problems


class Change(msgspec.Struct, frozen=True):
    """One topic's difference between two plans; None means the plan does not name the topic."""

    topic: str
    before: Placement | None
    after: Placement | None


class Plan(msgspec.Struct, frozen=True):
    version: int
    topics: Mapping[str, Placement]

    def diff(self, newer: Plan) -> list[Change]:
        """What differs in place or mode, sorted by topic. Epochs alone are no change."""
        changes = []
        for topic in sorted(self.topics.keys() | newer.topics.keys()):
            before, after = self.topics.get(topic), newer.topics.get(topic)
            if before is None or after is None or not before.same_place(after):
                changes.append(Change(topic, before, after))
        return changes

    def validate(self, brokers: Collection[str]) -> list[str]:
        """What is wrong with the plan, one sentence per fault; empty if it can be applied."""
        known = frozenset(brokers)
        return [
            f"topic {topic!r}: {problem}"
            for topic, placement in sorted(self.topics.items())
            for problem in problems(placement, known)
        ]
