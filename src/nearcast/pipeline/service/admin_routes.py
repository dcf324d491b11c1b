"""The routes of operators: channels, datasets, feeds, and the health of the service.

Channels are created from their text, listed and dropped, with the history of their executions. Datasets are listed, and
static ones are loaded from a file in the body. Feeds are created from a pattern of topics and a schema, listed, given
more columns, and dropped. /health says whether the service answers, and whether Spark runs behind it.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from fastapi import APIRouter, Query, Request, Response
from starlette.concurrency import run_in_threadpool

from nearcast.pipeline.catalog.catalog import Made
from nearcast.pipeline.catalog.channels import StoredChannel, described
from nearcast.pipeline.catalog.feeds import Feed
from nearcast.pipeline.channels.analysis import explained
from nearcast.pipeline.channels.execution import Prepared
from nearcast.pipeline.channels.language import InvalidChannel, parse_channel
from nearcast.pipeline.feeds import newest_dead_letters
from nearcast.pipeline.service.bodies import (
    ChannelBody,
    ChannelName,
    ChannelProblem,
    DatasetName,
    FeedBody,
    FeedChange,
    FeedName,
    Problem,
)
from nearcast.pipeline.service.state import Service, ServiceOf
from nearcast.pipeline.storage import checked_dataset_name

# --- channels


channel_routes = APIRouter(tags=["channels"])

T = TypeVar("T")

_SHOWN_ASIDE = 100  # at most this many subscriptions that are set aside are in one answer


@channel_routes.post(
    "/channels",
    status_code=201,
    responses={
        200: {"description": "It existed already, or replaced another one"},
        409: {"model": Problem},
        422: {"model": ChannelProblem},
    },
)
def create_channel(body: ChannelBody, service: ServiceOf, response: Response) -> dict[str, Any]:
    """createchannel: check the text against the datasets, and run the channel from now on.

    The first execution sees the records that are committed after this call. A refusal says where in the text the
    problem is.

    With OR REPLACE, a channel of the same name and parameters is replaced: its subscriptions stay, execution numbers
    continue, and the next execution sees the records after those of the last one committed. `made` in the answer is
    created, replaced or unchanged.
    """
    stored, replaces = _checked(service, body.text, lambda prepared: (described(prepared), prepared.channel.replaces))
    made = service.catalog.create_channel(stored, replaces=replaces)
    if made is not Made.CREATED:
        response.status_code = 200
    service.engine.changed()
    return {**_shown_channel(service, service.catalog.channels.get(stored.name)), "made": made}


@channel_routes.post("/channels/check", responses={422: {"model": ChannelProblem}})
def check_channel(body: ChannelBody, service: ServiceOf) -> dict[str, Any]:
    """Check a channel without creating it. The answer says how its subscriptions would be joined with the datasets."""
    return _checked(service, body.text, explained)


def _checked(service: Service, text: str, answer: Callable[[Prepared], T]) -> T:
    datasets = service.catalog.datasets
    schemas = {name: datasets.schema(name) for name in datasets.names()}
    try:
        return answer(service.engine.analyse(parse_channel(text), schemas))
    except RecursionError:  # within the limits of the language, but too much for a library
        raise InvalidChannel(1, 1, "nested too deeply", "simplify it") from None


@channel_routes.get("/channels")
def get_channels(service: ServiceOf) -> dict[str, Any]:
    """All channels."""
    return {"channels": [_shown_channel(service, channel) for channel in service.catalog.channels.all()]}


@channel_routes.get("/channels/{channel}", responses={404: {"model": Problem}})
def get_channel(channel: ChannelName, service: ServiceOf) -> dict[str, Any]:
    """One channel, with its text."""
    return _shown_channel(service, service.catalog.channels.get(channel))


@channel_routes.delete("/channels/{channel}", status_code=204, responses={404: {"model": Problem}})
def delete_channel(channel: ChannelName, service: ServiceOf) -> None:
    """Drop the channel with its subscriptions and results. A later one of the same name continues the numbers."""
    service.catalog.drop_channel(channel)
    service.engine.changed()


@channel_routes.get("/channels/{channel}/executions", responses={404: {"model": Problem}})
def get_executions(
    channel: ChannelName,
    service: ServiceOf,
    last: Annotated[int, Query(ge=1, le=1000)] = 20,
    plan: Annotated[bool, Query(description="Include Spark's plan of each.")] = False,
) -> dict[str, Any]:
    """The last executions, the newest first: what they read and when, how long they took, and what they returned.

    An execution is opened only for new records, so numbers do not count periods.
    """
    service.catalog.channels.get(channel)
    return {"executions": service.catalog.outcomes.history(channel, last, plan)}


def _shown_channel(service: Service, channel: StoredChannel) -> dict[str, Any]:
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
    """What is missing from the results of a running channel; empty if nothing is."""
    lacking = [f"{len(aside)} set aside, {name}: {problem}" for name, problem in itertools.islice(aside.items(), 1)]
    given_up = service.catalog.outcomes.given_up(channel)
    return "; ".join([*lacking, given_up] if given_up else lacking)


# --- datasets


dataset_routes = APIRouter(tags=["datasets"], responses={409: {"model": Problem}, 422: {"model": Problem}})


@dataset_routes.get("/datasets")
def get_datasets(service: ServiceOf) -> dict[str, Any]:
    """All datasets, with their columns and how much there is to read in each."""
    return {"datasets": [_shown_dataset(service, name) for name in service.catalog.datasets.names()]}


@dataset_routes.post(
    "/datasets/{dataset}",
    openapi_extra={
        "requestBody": {"content": {"text/csv": {}, "application/json": {}, "application/octet-stream": {}}}
    },
)
async def load_dataset(
    dataset: DatasetName,
    request: Request,
    service: ServiceOf,
    format: Annotated[Literal["csv", "json", "parquet"], Query(description="Format of the file in the body.")] = "csv",
    schema: Annotated[str, Query(description="As in CREATE TABLE; inferred from the file by default.")] = "",
    key: Annotated[str, Query(description="A column with unique values.")] = "",
) -> dict[str, Any]:
    """Replace a static dataset with the records of a file. Readers see all of the old or all of the new."""
    checked_dataset_name(dataset)  # before the body is received
    with tempfile.TemporaryDirectory(prefix="nearcast-load-") as folder:
        file = Path(folder) / f"{dataset}.{format}"
        with file.open("wb") as opened:
            async for part in request.stream():
                await run_in_threadpool(opened.write, part)
        await run_in_threadpool(service.engine.load, dataset, file, file_format=format, schema=schema, key=key)
    service.engine.changed()
    return await run_in_threadpool(_shown_dataset, service, dataset)


@dataset_routes.delete("/datasets/{dataset}", status_code=204)
def delete_dataset(dataset: DatasetName, service: ServiceOf) -> None:
    """Delete a dataset that no channel reads and no feed fills."""
    service.catalog.drop_dataset(dataset)


def _shown_dataset(service: Service, name: str) -> dict[str, Any]:
    datasets = service.catalog.datasets
    described = datasets.describe(name)
    rows, size = datasets.size(name)
    return {
        "name": name,
        "source": described.source,
        "columns": datasets.schema(name),
        "key": described.key,
        "position": described.position,
        "rows": rows,
        "bytes": size,
    }


# --- feeds


feed_routes = APIRouter(tags=["feeds"], responses={409: {"model": Problem}, 422: {"model": Problem}})


@feed_routes.post("/feeds", status_code=201, responses={200: {"description": "It existed already"}})
def create_feed(body: FeedBody, service: ServiceOf, response: Response) -> dict[str, Any]:
    """Create a feed: messages published after this call become records of the dataset of the same name.

    If no log covers its topics, one is made.
    """
    if service.catalog.feeds.find(body.name) is not None:
        response.status_code = 200
    return _shown_feed(service, service.engine.feeds.create(body.name, body.topic, body.schema_, body.format, body.key))


@feed_routes.get("/feeds")
def get_feeds(service: ServiceOf) -> dict[str, Any]:
    """All feeds, with counts of what became of their messages."""
    return {"feeds": [_shown_feed(service, feed) for feed in service.catalog.feeds.all()]}


@feed_routes.patch("/feeds/{feed}")
def alter_feed(feed: FeedName, body: FeedChange, service: ServiceOf) -> dict[str, Any]:
    """Add columns; existing records have null in them."""
    service.engine.feeds.alter(feed, body.add)
    return _shown_feed(service, service.catalog.feeds.get(feed))


@feed_routes.delete("/feeds/{feed}")
def delete_feed(feed: FeedName, service: ServiceOf) -> dict[str, Any]:
    """Drop the feed. Its dataset stays, and the channels named in the answer continue to read it."""
    service.engine.feeds.drop(feed)
    return {"readers": service.catalog.channels.readers(feed)}


@feed_routes.get("/feeds/{feed}/dead-letters")
def get_dead_letters(
    feed: FeedName, service: ServiceOf, last: Annotated[int, Query(ge=1, le=1000)] = 20
) -> dict[str, Any]:
    """The newest dead letters: unreadable records and losses. Payloads are shown as text, other bytes escaped."""
    service.catalog.feeds.get(feed)
    numbers = service.catalog.feeds.dead_letters(feed)
    folders = [service.catalog.warehouse.dead_letters(feed, number) for number in numbers]
    return {"dead_letters": newest_dead_letters(folders, last)}


def _shown_feed(service: Service, feed: Feed) -> dict[str, Any]:
    dataset = service.catalog.datasets.describe(feed.name)
    progress = feed.progress
    return {
        "name": feed.name,
        "topic": feed.topic,
        "log": feed.log,
        "format": feed.format,
        "columns": service.catalog.datasets.schema(feed.name),
        "key": dataset.key,
        "position": dataset.position,
        "records": progress.records,
        "dead": progress.dead,
        "lost": progress.lost,
        "parts_lost": progress.parts_lost,
    }


# --- health


health_routes = APIRouter(tags=["health"])


@health_routes.get("/health")
def get_health(service: ServiceOf) -> dict[str, Any]:
    """Answers as soon as the service is up.

    `spark`: starting, running, or why it does not run; `open`: executions that run; `damaged`: what can no longer be
    read; `feeds`: what keeps feeds from being read; `problem`: what failed unexpectedly in the last minute.
    """
    catalog = service.catalog
    return {
        "spark": service.engine.state,
        "open": len(catalog.executions.open()),
        "damaged": catalog.damaged(),
        "feeds": service.engine.feeds_problem,
        "problem": service.engine.trouble,
    }
