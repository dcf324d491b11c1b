"""Brokers: registered, listed, deleted, and told of new results by long poll."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from starlette.concurrency import run_in_threadpool

from nearcast.pipeline.catalog.outcomes import Notification
from nearcast.pipeline.service.bodies import NUMBER_MAX, BrokerBody, BrokerName
from nearcast.pipeline.service.state import Service, ServiceOf

router = APIRouter(tags=["brokers"])


@router.put("/brokers/{broker}")
def put_broker(broker: BrokerName, body: BrokerBody, service: ServiceOf, response: Response) -> dict[str, str]:
    """createbroker: register a broker, or say again where it is. 201 if it is new."""
    response.status_code = 201 if service.catalog.brokers.put(broker, body.url) else 200
    return {"broker": broker, "url": body.url}


@router.get("/brokers")
def get_brokers(service: ServiceOf) -> dict[str, Any]:
    """All brokers, with the number of subscriptions that each holds."""
    held = service.catalog.subscriptions.held_by
    brokers = service.catalog.brokers.all()
    return {"brokers": [{"broker": name, "url": url, "held": len(held(name))} for name, url in brokers.items()]}


@router.delete("/brokers/{broker}", status_code=204)
def delete_broker(broker: BrokerName, service: ServiceOf) -> None:
    """The broker is gone; subscriptions that nobody else holds end."""
    service.catalog.drop_broker(broker)


@router.get("/brokers/{broker}/notifications")
async def get_notifications(
    broker: BrokerName,
    service: ServiceOf,
    after: Annotated[
        int | None, Query(ge=0, le=NUMBER_MAX, description="The cursor of the last answer; none: from now on.")
    ] = None,
    wait_s: Annotated[float, Query(ge=0, le=60, description="How long to wait for news.")] = 20.0,
) -> dict[str, Any]:
    """Executions with results for subscriptions that the broker holds, committed after a cursor.

    Waits until there are some. Cursors only grow, over restarts too. A broker without a cursor, or with one from
    before the oldest results that are kept, asks for the executions of each of its subscriptions.
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
