"""Moves under way: topics that are still at their old brokers, while their clients attach to the new ones.

A move takes `move_s` and costs control frames at the old and at the new brokers; messages are not doubled, because a
publisher writes to the old placement until the fence and to the new one after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nearcast.core.proposal import PlaceTopic
from nearcast.flow.demand import BoolArray, FloatArray
from nearcast.flow.fleet import Fleet
from nearcast.flow.placements import Placements
from nearcast.flow.series import ChangeKind, PlanChange
from nearcast.flow.settings import FlowSettings
from nearcast.flow.traffic import TopicTraffic


@dataclass(frozen=True, slots=True)
class _Move:
    number: int  # of the topic
    place: PlaceTopic
    began_s: float
    due_s: float


class Moves:
    def __init__(self, placements: Placements, fleet: Fleet, settings: FlowSettings) -> None:
        self._placements = placements
        self._fleet = fleet
        self._settings = settings
        self._under_way: list[_Move] = []

    def __len__(self) -> int:
        return len(self._under_way)

    def begin(self, places: list[PlaceTopic], now_s: float) -> None:
        due_s = now_s + self._settings.move_s
        self._under_way += [_Move(self._placements.number(place.topic), place, now_s, due_s) for place in places]

    def finish(self, now_s: float) -> list[PlanChange]:
        """Let the moves take effect that are due."""
        done = [move for move in self._under_way if move.due_s <= now_s]
        if done:
            self._under_way = [move for move in self._under_way if move.due_s > now_s]
            self._placements.place({move.place.topic: (move.place.mode, move.place.brokers) for move in done})
        return [
            PlanChange(
                at_s=now_s,
                kind=ChangeKind.PLACED,
                topic=move.place.topic,
                mode=move.place.mode,
                brokers=move.place.brokers,
                began_s=move.began_s,
            )
            for move in done
        ]

    def moving(self, topics: int) -> BoolArray:
        mask = np.zeros(topics, dtype=np.bool_)
        mask[[move.number for move in self._under_way]] = True
        return mask

    def involve(self, broker: str) -> bool:
        return any(broker in move.place.brokers for move in self._under_way)

    def bytes_per_s(self, traffic: TopicTraffic, rows: int) -> FloatArray:
        """Per broker: the control frames."""
        total = np.zeros(rows)
        plan = self._placements.plan.topics
        for move in self._under_way:
            clients = traffic.subscribers[move.number] + traffic.publishers[move.number]
            bytes_per_s = clients * self._settings.move_bytes / max(self._settings.move_s, self._settings.step_s)
            for brokers in (plan[move.place.topic].brokers, move.place.brokers):
                for broker in brokers:
                    total[self._fleet.rows[broker]] += bytes_per_s / len(brokers)
        return total
