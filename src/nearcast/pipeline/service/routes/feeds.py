"""Feeds: made from a pattern of topics and a schema, listed, widened by a column, dropped."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response

from nearcast.pipeline.catalog.feeds import Feed
from nearcast.pipeline.service.bodies import FeedBody, FeedChange, FeedName, Problem
from nearcast.pipeline.service.state import Service, ServiceOf

router = APIRouter(tags=["feeds"], responses={409: {"model": Problem}, 422: {"model": Problem}})


@router.post("/feeds", status_code=201, responses={200: {"description": "It was there already"}})
def create_feed(body: FeedBody, service: ServiceOf, response: Response) -> dict[str, Any]:
    """Messages of these topics become records of the dataset of the same name, from now on."""
    if service.catalog.feeds.find(body.name) is not None:
        response.status_code = 200
    return _shown(service, service.engine.feeds.create(body.name, body.topic, body.schema_, body.format, body.key))


@router.get("/feeds")
def get_feeds(service: ServiceOf) -> dict[str, Any]:
    """All feeds, with what became of their messages."""
    return {"feeds": [_shown(service, feed) for feed in service.catalog.feeds.all()]}


@router.patch("/feeds/{feed}")
def alter_feed(feed: FeedName, body: FeedChange, service: ServiceOf) -> dict[str, Any]:
    """Add columns; records that are there have null in them."""
    service.engine.feeds.alter(feed, body.add)
    return _shown(service, service.catalog.feeds.get(feed))


@router.delete("/feeds/{feed}", status_code=204)
def delete_feed(feed: FeedName, service: ServiceOf) -> None:
    """The feed ends; its dataset stays."""
    service.engine.feeds.drop(feed)


def _shown(service: Service, feed: Feed) -> dict[str, Any]:
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
        "records": progress.records,
        "dead": progress.dead,
        "gaps": progress.gaps,
        "lost": progress.lost,
    }
