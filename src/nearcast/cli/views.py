"""How a topic's state is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearcast.core.bus import TopicState
    from nearcast.core.placement import Placement

TOPIC_COLUMNS = ("topic", "mode", "brokers", "epoch", "state")


def placement_data(placement: Placement) -> dict[str, object]:
    return {"epoch": placement.epoch, "mode": placement.mode, "brokers": placement.brokers}


def topic_data(state: TopicState) -> dict[str, object]:
    target = placement_data(state.target) if state.target is not None else None
    return {**placement_data(state.placement), "planned": state.planned, "target": target, "stage": state.stage or None}


def topic_row(topic: str, state: TopicState) -> tuple[str, ...]:
    placement = state.placement
    return (topic, placement.mode, ", ".join(placement.brokers), str(placement.epoch), _words(state))


def _words(state: TopicState) -> str:
    if state.target is not None:
        target = state.target
        return f"moving to {', '.join(target.brokers)} ({target.mode}), stage {state.stage or 'decided'}"
    return "settled" if state.planned else "not placed: on its directory"
