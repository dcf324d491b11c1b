"""The routes of gateways: brokers, backend subscriptions, and results.

Brokers are registered, listed and deleted, and learn of new results by long poll. Brokers hold backend subscriptions,
move them to each other, and ask which executions have results for them. Results are fetched for one subscription, or
for several of an execution at once. The rates of results can be fetched too, in bytes per second.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Response
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from nearcast.pipeline.catalog.channels import channel_of
from nearcast.pipeline.catalog.database import CatalogFull, CatalogRefusal, NoLongerKept, Unknown
from nearcast.pipeline.catalog.executions import Notification
from nearcast.pipeline.service.bodies import (
    NUMBER_MAX,
    BrokerBody,
    BrokerName,
    ChannelName,
    MoveBody,
    Number,
    Problem,
    ResultsBody,
    SubscribeBody,
    SubscriptionId,
    Wanted,
)
from nearcast.pipeline.service.results import Rows
from nearcast.pipeline.service.state import Service, ServiceOf

# --- brokers


broker_routes = APIRouter(tags=["brokers"])


@broker_routes.put("/brokers/{broker}")
def put_broker(broker: BrokerName, body: BrokerBody, service: ServiceOf, response: Response) -> dict[str, str]:
    """createbroker: register a broker, or repeat its URL. 201 if it is new."""
    response.status_code = 201 if service.catalog.brokers.put(broker, body.url) else 200
    return {"broker": broker, "url": body.url}


@broker_routes.get("/brokers")
def get_brokers(service: ServiceOf) -> dict[str, Any]:
    """All brokers, with the number of subscriptions that each holds."""
    held = service.catalog.subscriptions.held_by
    brokers = service.catalog.brokers.all()
    return {"brokers": [{"broker": name, "url": url, "held": len(held(name))} for name, url in brokers.items()]}


@broker_routes.delete("/brokers/{broker}", status_code=204)
def delete_broker(broker: BrokerName, service: ServiceOf) -> None:
    """Delete a broker. Subscriptions that no other broker holds end."""
    service.catalog.drop_broker(broker)


@broker_routes.get("/brokers/{broker}/notifications")
async def get_notifications(
    broker: BrokerName,
    service: ServiceOf,
    after: Annotated[
        int | None, Query(ge=0, le=NUMBER_MAX, description="The cursor of the last answer. Default: from now on.")
    ] = None,
    wait_s: Annotated[float, Query(ge=0, le=60, description="How long to wait for news.")] = 20.0,
) -> dict[str, Any]:
    """Executions with results for subscriptions that the broker holds, committed after a cursor.

    Waits until there are some. Cursors only grow, even across restarts. A broker without a cursor, or with one from
    before the oldest results that are kept, should ask for the executions of each of its subscriptions.
    """
    await run_in_threadpool(service.catalog.brokers.heard, broker)
    if after is None:
        return {"cursor": await run_in_threadpool(service.catalog.outcomes.newest_cursor), "notifications": []}
    cursor, found = await _news(service, broker, after, asyncio.get_running_loop().time() + wait_s)
    shown = [{"channel": n.channel, "execution": n.execution, "subscriptions": n.subscriptions} for n in found]
    return {"cursor": cursor, "notifications": shown}


async def _news(service: Service, broker: str, after: int, deadline_s: float) -> tuple[int, list[Notification]]:
    with service.commits.poll() as poll:
        while True:
            cursor, found = await run_in_threadpool(service.catalog.outcomes.notifications, broker, after)
            more = cursor > after
            after = cursor
            if found or (not more and not await poll.wait(deadline_s)):
                return cursor, found


# --- results


result_routes = APIRouter(tags=["results"], responses={404: {"model": Problem}, 410: {"model": Problem}})


@result_routes.get("/results/{channel}/{execution}/{subscription}")
def get_result(channel: ChannelName, execution: Number, subscription: SubscriptionId, service: ServiceOf) -> Response:
    """The rows of one subscription. 404: not committed, or no rows; 410: no longer kept."""
    found = _rows(service, channel, execution, [subscription])
    if subscription not in found:
        raise Unknown(f"execution {execution} has no results for {subscription}", "ask for those it has results for")
    return _json({"rows": found[subscription]})


@result_routes.post("/results")
def get_results(body: ResultsBody, service: ServiceOf) -> Response:
    """The rows of several subscriptions of one execution, in one call; those without rows are left out."""
    return _json({"results": _rows(service, body.channel, body.execution, body.subscriptions)})


@result_routes.get("/rates")
def get_rates(service: ServiceOf) -> dict[str, Any]:
    """Bytes of results per second of each subscription, over the last ten periods of its channel."""
    return {"rates": service.catalog.outcomes.rates()}


def _rows(service: Service, channel: str, execution: int, subscriptions: list[str]) -> dict[str, Rows]:
    service.catalog.channels.get(channel)
    outcomes = service.catalog.outcomes
    outcomes.require_kept(channel, execution)
    wanted = outcomes.with_results(channel, execution, subscriptions)
    if not wanted:
        return {}
    try:
        rows = service.results.rows(channel, execution, wanted)
    except FileNotFoundError:
        outcomes.require_kept(channel, execution)  # retention was faster
        raise NoLongerKept(f"the files of execution {execution} of {channel} are gone", "ask for a later one") from None
    outcomes.note_fetched(channel, execution)
    return rows


def _json(data: dict[str, Any]) -> Response:
    """Rows are already in their JSON form (`results.py`)."""
    return Response(msgspec.json.encode(data), media_type="application/json")


# --- backend subscriptions


subscription_routes = APIRouter(tags=["subscriptions"], responses={404: {"model": Problem}})


@subscription_routes.post("/subscriptions")
def subscribe(body: SubscribeBody, service: ServiceOf) -> dict[str, Any]:
    """subscribe: the broker holds these from now on. Answers are in the order of the requests.

    Repeating the call changes nothing. The user who asked now gets results from `from_execution` on. Identical
    parameters are one subscription, shared by all brokers.
    """
    most = service.settings.limits.wanted
    if len(body.wanted) > most:
        raise CatalogFull(f"{len(body.wanted)} subscriptions in one call", f"ask for at most {most} at once")
    with service.catalog.database.transaction():
        service.catalog.brokers.heard(body.broker)
        return {"subscriptions": [_subscribed(service, body.broker, wish) for wish in body.wanted]}


def _subscribed(service: Service, broker: str, wish: Any) -> dict[str, Any]:
    """The answer to one request; what is wrong with it does not affect others in the same call."""
    try:
        wanted = Wanted.model_validate(wish)
        channel = service.catalog.channels.get(wanted.channel.lower())
        held = service.catalog.subscriptions.attach(broker, channel, wanted.parameters, wanted.user)
        return msgspec.to_builtins(held)
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ascii(first["loc"][0]) if first["loc"] else "the request"
        return {"problem": f"{where}: {first['type']}", "hint": "send a channel and its parameters"}
    except CatalogRefusal as refusal:
        return {"problem": refusal.problem, "hint": refusal.hint}


@subscription_routes.delete("/subscriptions/{subscription}", status_code=204)
def unsubscribe(
    subscription: SubscriptionId, service: ServiceOf, broker: Annotated[str, Query(examples=["b1"])]
) -> None:
    """unsubscribe: the broker no longer holds it; it ends when no broker does."""
    service.catalog.subscriptions.detach(broker, subscription)


@subscription_routes.post("/subscriptions/{subscription}/move", status_code=204)
def move(subscription: SubscriptionId, body: MoveBody, service: ServiceOf) -> None:
    """Another broker holds it instead. Stored results are not affected."""
    with service.catalog.database.transaction():
        service.catalog.brokers.require(body.target)
        service.catalog.subscriptions.move(subscription, body.source, body.target)


@subscription_routes.get("/subscriptions/{subscription}/executions")
def get_executions(
    subscription: SubscriptionId,
    service: ServiceOf,
    after: Annotated[int, Query(ge=0, le=NUMBER_MAX, description="The last execution that the caller knows.")] = 0,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
) -> dict[str, Any]:
    """The executions that have results for a subscription, the oldest first.

    All up to `upto` are committed; those before `oldest` are no longer kept. This also works for a subscription that
    has ended, so that a subscriber who was away can still fetch what is stored. `problem`: why the subscription was set
    aside, so that no more results will come; empty if it was not.
    """
    channel = service.catalog.channels.get(channel_of(subscription)).name
    with service.catalog.database.transaction():
        numbers = service.catalog.channels.numbers(channel)
        found = service.catalog.outcomes.after(subscription, channel, after, limit)
        problem = service.catalog.subscriptions.problem(subscription)
    shown = [{"execution": number, "rows": size.rows, "bytes": size.bytes} for number, size in found]
    return {"executions": shown, "upto": numbers.committed, "oldest": numbers.oldest, "problem": problem}
