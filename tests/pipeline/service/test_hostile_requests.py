"""No request makes the API fail: it is answered or refused, and the next one is served."""

from __future__ import annotations

from itertools import islice

import pytest
from fastapi.testclient import TestClient
from hostile import requests

from nearcast.pipeline.feeds import Feeds
from nearcast.pipeline.service.app import create_app
from nearcast.pipeline.service.state import CatalogOnly
from nearcast.pipeline.storage import checked_dataset_name, parse_schema

REQUESTS = 600


class Engine(CatalogOnly):
    """Makes feeds, and checks what it is to load; without Spark."""

    def __init__(self, catalog, url) -> None:
        self._feeds = Feeds(catalog.database, catalog.datasets, url)

    @property
    def feeds(self):
        return self._feeds

    def load(self, name, file, *, file_format, schema, key):
        checked_dataset_name(name)
        parse_schema(schema)


@pytest.fixture
def api(cluster, brokers):
    cluster.subscribe("b1", "fire")
    return TestClient(
        create_app(cluster.catalog, engine=Engine(cluster.catalog, brokers.store_url)), raise_server_exceptions=False
    )


@pytest.mark.live
@pytest.mark.parametrize("seed", [1])
def test_no_request_makes_the_api_fail(api, seed):
    failed = {}
    openapi = api.get("/openapi.json").json()
    for request in islice(requests(seed, openapi), REQUESTS):
        answer = api.request(request.method, request.url, headers=request.headers, content=request.content)
        if answer.status_code >= 500 or (answer.status_code >= 400 and "problem" not in answer.json()):
            failed.setdefault((request.method, request.url[:60], answer.status_code), request.content[:200])
    assert failed == {}, f"seed {seed}"
    assert api.get("/health").json()["damaged"] == []
