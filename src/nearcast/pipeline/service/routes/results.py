"""Results: of one subscription, or of all that a broker needs of an execution; and what they weigh."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter, Response

from nearcast.pipeline.catalog.refusals import NoLongerKept, Unknown
from nearcast.pipeline.service.bodies import ChannelName, Number, Problem, ResultsBody, SubscriptionId
from nearcast.pipeline.service.results import Rows
from nearcast.pipeline.service.state import Service, ServiceOf

router = APIRouter(tags=["results"], responses={404: {"model": Problem}, 410: {"model": Problem}})


@router.get("/results/{channel}/{execution}/{subscription}")
def get_result(channel: ChannelName, execution: Number, subscription: SubscriptionId, service: ServiceOf) -> Response:
    """The rows of one subscription. 404: not committed, or no rows; 410: no longer kept."""
    found = _rows(service, channel, execution, [subscription])
    if subscription not in found:
        raise Unknown(f"execution {execution} has no results for {subscription}", "ask for those it has results for")
    return _json({"rows": found[subscription]})


@router.post("/results")
def get_results(body: ResultsBody, service: ServiceOf) -> Response:
    """The rows of several subscriptions of one execution, in one call; those without rows are left out."""
    return _json({"results": _rows(service, body.channel, body.execution, body.subscriptions)})


@router.get("/rates")
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
        outcomes.require_kept(channel, execution)  # retention was faster than we
        raise NoLongerKept(f"the files of execution {execution} of {channel} are gone", "ask for a later one") from None
    outcomes.note_fetched(channel, execution)
    return rows


def _json(data: dict[str, Any]) -> Response:
    """Rows come in their JSON form already (`json_forms.py`)."""
    return Response(msgspec.json.encode(data), media_type="application/json")
