"""The view: everything the controller knows that a policy may want to know, at one moment.

Taking a view only copies references, because it is done on the controller's loop. What takes time, adding the reports
up, is done where the policy runs.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from nearcast.core.journal import BrokerEntry, BrokerState, TopicEntry
from nearcast.core.load_book import Windows, output_bytes_per_s, topic_loads
from nearcast.core.placement import single
from nearcast.core.plan import Plan
from nearcast.core.snapshot import BrokerLoad, Snapshot


class View(msgspec.Struct, frozen=True, kw_only=True):
    at_s: float
    version: int  # of the plan
    members: int  # version of the membership
    brokers: Mapping[str, BrokerEntry]  # those that carry topics
    windows: Windows
    topics: Mapping[str, TopicEntry]  # the planned ones
    fresh: frozenset[str]  # brokers that joined after the last change of the plan
    capacity_bytes_per_s: float  # of brokers that have not said
    spare: int = 0
    coming: int = 0

    def snapshot(self) -> tuple[Snapshot, Plan]:
        """What policies read. A topic no plan names is taken to live where most of its traffic is reported."""
        loads, reporters = topic_loads(self.windows)
        placements = {
            topic: entry.placement if (entry := self.topics.get(topic)) else single(self.members, broker, self.members)
            for topic, broker in reporters.items()
        }
        brokers = {name: self._broker(name, entry) for name, entry in self.brokers.items()}
        return Snapshot(self.at_s, brokers, loads, self.spare, self.coming), Plan(self.version, placements)

    def _broker(self, name: str, entry: BrokerEntry) -> BrokerLoad:
        reports = self.windows.get(name, ())
        leaving = entry.state is BrokerState.LEAVING
        return BrokerLoad(
            capacity_bytes_per_s=entry.capacity_bytes_per_s or self.capacity_bytes_per_s,
            output_bytes_per_s=output_bytes_per_s(reports),
            cpu_share=reports[-1].cpu_share if reports else 0.0,
            connections=reports[-1].connections if reports else 0,
            site=entry.site,
            draining=leaving,
            removable=entry.by_policy if leaving else entry.rented,
            fresh=name in self.fresh,
        )
