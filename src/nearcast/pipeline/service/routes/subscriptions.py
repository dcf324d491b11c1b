"""Backend subscriptions: held by brokers, moved between them, and the executions that have results for each."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query
from pydantic import ValidationError

from nearcast.pipeline.catalog.parameters import channel_of
from nearcast.pipeline.catalog.refusals import CatalogFull, CatalogRefusal
from nearcast.pipeline.service.bodies import NUMBER_MAX, MoveBody, Problem, SubscribeBody, SubscriptionId, Wanted
from nearcast.pipeline.service.state import Service, ServiceOf

router = APIRouter(tags=["subscriptions"], responses={404: {"model": Problem}})


@router.post("/subscriptions")
def subscribe(body: SubscribeBody, service: ServiceOf) -> dict[str, Any]:
    """subscribe: the broker holds these from now on; each answer stands where its wish stood.

    Asking again changes nothing. Results from `from_execution` on are for who asked now; identical parameters of all
    brokers are one subscription.
    """
    most = service.settings.limits.wanted
    if len(body.wanted) > most:
        raise CatalogFull(f"{len(body.wanted)} subscriptions in one call", f"ask for at most {most} at once")
    with service.catalog.database.transaction():
        service.catalog.brokers.heard(body.broker)
        return {"subscriptions": [_subscribed(service, body.broker, wish) for wish in body.wanted]}


def _subscribed(service: Service, broker: str, wish: Any) -> dict[str, Any]:
    """The answer to one wish; what is wrong with it harms no other of the same call."""
    try:
        wanted = Wanted.model_validate(wish)
        channel = service.catalog.channels.get(wanted.channel.lower())
        held = service.catalog.subscriptions.attach(broker, channel, wanted.parameters, wanted.user)
        return msgspec.to_builtins(held)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ascii(first["loc"][0]) if first["loc"] else "the wish"
        return {"problem": f"{where}: {first['type']}", "hint": "send a channel and its parameters"}
    except CatalogRefusal as refusal:
        return {"problem": refusal.problem, "hint": refusal.hint}


@router.delete("/subscriptions/{subscription}", status_code=204)
def unsubscribe(
    subscription: SubscriptionId, service: ServiceOf, broker: Annotated[str, Query(examples=["b1"])]
) -> None:
    """unsubscribe: the broker holds it no longer; it ends when no broker does."""
    service.catalog.subscriptions.detach(broker, subscription)


@router.post("/subscriptions/{subscription}/move", status_code=204)
def move(subscription: SubscriptionId, body: MoveBody, service: ServiceOf) -> None:
    """Another broker holds it instead. Results that are stored stay where they are."""
    with service.catalog.database.transaction():
        service.catalog.brokers.require(body.target)
        service.catalog.subscriptions.move(subscription, body.source, body.target)


@router.get("/subscriptions/{subscription}/executions")
def get_executions(
    subscription: SubscriptionId,
    service: ServiceOf,
    after: Annotated[int, Query(ge=0, le=NUMBER_MAX, description="The last execution that is known.")] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
) -> dict[str, Any]:
    """The executions that have results for a subscription, the oldest first.

    All up to `upto` are committed; those before `oldest` are no longer kept. Also for a subscription that has ended:
    a subscriber who was away may still fetch what was stored. `problem`: why no more will come, because the
    subscription failed the channel's query and was set aside; empty if it was not.
    """
    channel = service.catalog.channels.get(channel_of(subscription)).name
    with service.catalog.database.transaction():
        numbers = service.catalog.channels.numbers(channel)
        found = service.catalog.outcomes.after(subscription, channel, after, limit)
        problem = service.catalog.subscriptions.problem(subscription)
    shown = [{"execution": number, "rows": size.rows, "bytes": size.bytes} for number, size in found]
    return {"executions": shown, "upto": numbers.committed, "oldest": numbers.oldest, "problem": problem}
