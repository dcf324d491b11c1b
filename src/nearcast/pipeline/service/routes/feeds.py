"""Feeds: made from a pattern of topics and a schema, listed, widened by a column, dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from nearcast.pipeline.catalog.feeds import Feed
from nearcast.pipeline.dead_letters import newest_dead_letters
from nearcast.pipeline.service.bodies import FeedBody, FeedChange, FeedName, Problem
from nearcast.pipeline.service.state import Service, ServiceOf

router = APIRouter(tags=["feeds"], responses={409: {"model": Problem}, 422: {"model": Problem}})


@router.post("/feeds", status_code=201, responses={200: {"description": "It was there already"}})
def create_feed(
    body: FeedBody,
    service: ServiceOf,
    response: Response,
    wait_s: Annotated[float, Query(ge=0, le=60, description="How long to wait until an agent collects it.")] = 0.0,
) -> dict[str, Any]:
    """Messages of these topics become records of the dataset of the same name, from when an agent collects them."""
    if service.catalog.feeds.find(body.name) is not None:
        response.status_code = 200
    feed = service.engine.feeds.create(body.name, body.topic, body.schema_, body.format, body.key)
    if wait_s:
        service.engine.feeds.until_collected(feed.name, wait_s)
    return _shown(service, feed, service.engine.feeds.collectors())


@router.get("/feeds")
def get_feeds(service: ServiceOf) -> dict[str, Any]:
    """All feeds, with what became of their messages."""
    feeds = service.catalog.feeds.all()
    collectors = service.engine.feeds.collectors() if feeds else {}
    return {"feeds": [_shown(service, feed, collectors) for feed in feeds]}


@router.patch("/feeds/{feed}")
def alter_feed(feed: FeedName, body: FeedChange, service: ServiceOf) -> dict[str, Any]:
    """Add columns; records that are there have null in them."""
    service.engine.feeds.alter(feed, body.add)
    return _shown(service, service.catalog.feeds.get(feed), service.engine.feeds.collectors())


@router.delete("/feeds/{feed}")
def delete_feed(feed: FeedName, service: ServiceOf) -> dict[str, Any]:
    """The feed ends; its dataset stays, and the channels named in the answer go on reading it."""
    service.engine.feeds.drop(feed)
    return {"readers": service.catalog.channels.readers(feed)}


@router.get("/feeds/{feed}/dead-letters")
def get_dead_letters(
    feed: FeedName, service: ServiceOf, last: Annotated[int, Query(ge=1, le=1000)] = 20
) -> dict[str, Any]:
    """The newest records that could not be read, gaps and losses; payloads as text, bytes that are none escaped."""
    service.catalog.feeds.get(feed)
    numbers = service.catalog.feeds.dead_letters(feed)
    folders = [service.catalog.warehouse.dead_letters(feed, number) for number in numbers]
    return {"dead_letters": newest_dead_letters(folders, last)}


def _shown(service: Service, feed: Feed, collectors: Mapping[str, str]) -> dict[str, Any]:
    dataset = service.catalog.datasets.describe(feed.name)
    progress = feed.progress
    return {
        "name": feed.name,
        "topic": feed.topic,
        "stream": feed.stream,
        "format": feed.format,
        "columns": service.catalog.datasets.schema(feed.name),
        "key": dataset.key,
        "position": dataset.position,
        "collector": collectors.get(feed.name, ""),
        "records": progress.records,
        "dead": progress.dead,
        "gaps": progress.gaps,
        "lost": progress.lost,
        "remade": progress.remade,
    }
