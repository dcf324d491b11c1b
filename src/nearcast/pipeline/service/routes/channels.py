"""Channels: created from their text, listed, dropped, and the history of their executions."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Query, Response

from nearcast.pipeline.catalog.catalog import Made
from nearcast.pipeline.catalog.channels import StoredChannel, described
from nearcast.pipeline.channels.execution import Prepared
from nearcast.pipeline.channels.explanation import explained
from nearcast.pipeline.channels.language import parse_channel
from nearcast.pipeline.channels.refusal import InvalidChannel
from nearcast.pipeline.service.bodies import ChannelBody, ChannelName, ChannelProblem, Problem
from nearcast.pipeline.service.state import Service, ServiceOf

router = APIRouter(tags=["channels"])

T = TypeVar("T")

_SHOWN_ASIDE = 100  # subscriptions that are set aside, in one answer


@router.post(
    "/channels",
    status_code=201,
    responses={
        200: {"description": "It was there already, or replaced another one"},
        409: {"model": Problem},
        422: {"model": ChannelProblem},
    },
)
def create_channel(body: ChannelBody, service: ServiceOf, response: Response) -> dict[str, Any]:
    """createchannel: check the text against the datasets, and run it from now on.

    The first execution sees the records that are committed after this call. A refusal says where in the text.

    With OR REPLACE another channel of the name, with the same parameters, is replaced: its subscriptions stay, numbers
    of executions go on, and the next one sees the records after those of the last one committed. `made` in the answer
    is created, replaced or unchanged.
    """
    stored, replaces = _checked(service, body.text, lambda prepared: (described(prepared), prepared.channel.replaces))
    made = service.catalog.create_channel(stored, replaces=replaces)
    if made is not Made.CREATED:
        response.status_code = 200
    service.engine.changed()
    return {**_shown(service, service.catalog.channels.get(stored.name)), "made": made}


@router.post("/channels/check", responses={422: {"model": ChannelProblem}})
def check_channel(body: ChannelBody, service: ServiceOf) -> dict[str, Any]:
    """The same check without creating it: how its subscriptions will be joined with the datasets."""
    return _checked(service, body.text, explained)


def _checked(service: Service, text: str, told: Callable[[Prepared], T]) -> T:
    datasets = service.catalog.datasets
    schemas = {name: datasets.schema(name) for name in datasets.names()}
    try:
        return told(service.engine.analyse(parse_channel(text), schemas))
    except RecursionError:  # within the limits of the language, and still too much for somebody behind it
        raise InvalidChannel(1, 1, "nested too deep", "write it more simply") from None


@router.get("/channels")
def get_channels(service: ServiceOf) -> dict[str, Any]:
    """All channels."""
    return {"channels": [_shown(service, channel) for channel in service.catalog.channels.all()]}


@router.get("/channels/{channel}", responses={404: {"model": Problem}})
def get_channel(channel: ChannelName, service: ServiceOf) -> dict[str, Any]:
    """One channel, with its text."""
    return _shown(service, service.catalog.channels.get(channel))


@router.delete("/channels/{channel}", status_code=204, responses={404: {"model": Problem}})
def delete_channel(channel: ChannelName, service: ServiceOf) -> None:
    """The channel ends, with its subscriptions and results. One of the same name goes on with the numbers."""
    service.catalog.drop_channel(channel)
    service.engine.changed()


@router.get("/channels/{channel}/executions", responses={404: {"model": Problem}})
def get_executions(
    channel: ChannelName,
    service: ServiceOf,
    last: Annotated[int, Query(ge=1, le=1000)] = 20,
    plan: Annotated[bool, Query(description="With Spark's plan of each.")] = False,
) -> dict[str, Any]:
    """The last executions, the newest first: what they read, when, how long they took, and what they gave.

    An execution is opened for new records only: numbers do not tell how many periods went by.
    """
    service.catalog.channels.get(channel)
    return {"executions": service.catalog.outcomes.history(channel, last, plan)}


def _shown(service: Service, channel: StoredChannel) -> dict[str, Any]:
    numbers = service.catalog.channels.numbers(channel.name)
    aside = service.catalog.subscriptions.problems(channel.name)
    return {
        **msgspec.to_builtins(channel),
        "subscriptions": numbers.held,
        "committed": numbers.committed,
        "oldest": numbers.oldest,
        "set_aside": dict(itertools.islice(aside.items(), _SHOWN_ASIDE)),
        "problem": service.engine.problem(channel) or _lacks(service, channel, aside),
    }


def _lacks(service: Service, channel: StoredChannel, aside: dict[str, str]) -> str:
    """What a channel that runs goes without."""
    told = [f"{len(aside)} set aside, {name}: {problem}" for name, problem in itertools.islice(aside.items(), 1)]
    given_up = service.catalog.outcomes.given_up(channel)
    return "; ".join([*told, given_up] if given_up else told)
