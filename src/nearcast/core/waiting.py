"""What a call waits for, in words: for the error of one that has waited too long."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from nearcast.core.names import decode_topic

if TYPE_CHECKING:
    from nearcast.core.client import Client
    from nearcast.core.inflow import Inflow
    from nearcast.core.outflow import Outflow
    from nearcast.core.patterns import PatternFlow
    from nearcast.core.placement import Placement


def for_acknowledgements(outflows: Collection[Outflow], now_s: float) -> str:
    """Why the messages of these topics are not acknowledged yet."""
    return _first_of([(decode_topic(outflow.topic), _acknowledgement(outflow, now_s)) for outflow in outflows])


def for_attachment(client: Client, names: Collection[bytes], now_s: float) -> str:
    """Why topics or patterns of these names are not attached yet."""
    topics = [client.inflows[name] for name in names if name in client.inflows]
    patterns = [client.patterns[name] for name in names if name in client.patterns]
    reasons = [(inflow.name, _attachment(inflow, now_s)) for inflow in topics if not inflow.joined]
    reasons += [(flow.name, _pattern_attachment(flow, now_s)) for flow in patterns if not flow.joined]
    return _first_of(reasons)


def _first_of(reasons: list[tuple[str, str]]) -> str:
    """The first reason, with the name of its topic, and how many more wait."""
    if not reasons:
        return "the program was too busy to look at the answer"
    name, reason = reasons[0]
    more = f"; {len(reasons) - 1} more topics wait" if len(reasons) > 1 else ""
    return f"{name!r}: {reason}{more}"


def _acknowledgement(outflow: Outflow, now_s: float) -> str:
    """Why what was published last is not acknowledged yet."""
    client = outflow.client
    if outflow.placement is None:
        return _not_found(client, outflow.topic, now_s)
    owing = [lane for lane in outflow.lanes if lane.counted < outflow.sequence]
    silent = [lane.broker for lane in owing if lane.link is not None]
    return _first(
        *(client.links.trouble(lane.broker, now_s) for lane in owing),
        f"{silent[0]} has not acknowledged it" if silent else _moving(outflow.upcoming),
        *(f"{lane.broker} has not let us in" for lane in owing),
    )


def _attachment(inflow: Inflow, now_s: float) -> str:
    """Why a subscription is not attached yet."""
    client = inflow.client
    if inflow.placement is None:
        return _not_found(client, inflow.topic, now_s)
    brokers = list(inflow.needed())
    held = [inflow.attachments.get(broker) for broker in brokers]
    shut = [name for name, attached in zip(brokers, held, strict=True) if attached is None or not attached.open]
    return _first(
        *(client.links.trouble(broker, now_s) for broker in brokers),
        _moving(inflow.upcoming),
        *(f"{broker} has not confirmed the subscription" for broker in shut),
        "the brokers have not said again where the topic is",
    )


def _pattern_attachment(flow: PatternFlow, now_s: float) -> str:
    """Why a pattern subscription is not attached yet."""
    links = flow.client.links
    missing = flow.missing()
    return _first(
        *(links.trouble(broker, now_s) for broker in missing),
        *(f"{broker} has not confirmed the subscription" for broker in missing),
        links.nobody(),
    )


def _not_found(client: Client, topic: bytes, now_s: float) -> str:
    directory = client.membership.directory(topic)
    if directory is None:
        return client.links.nobody()
    unsaid = "it has not been told where the topic is"
    return f"{unsaid}: {client.links.trouble(directory, now_s) or f'{directory} has not answered'}"


def _moving(upcoming: Placement | None) -> str | None:
    return f"the topic is being moved to {', '.join(upcoming.brokers)}" if upcoming is not None else None


def _first(*reasons: str | None) -> str:
    return next((reason for reason in reasons if reason), "an answer")
