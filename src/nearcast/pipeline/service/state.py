"""What all routes share: the catalogue, the results, who waits, and the engine that has Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Protocol

from fastapi import Depends, Request

from nearcast.pipeline.catalog.catalog import Catalog
from nearcast.pipeline.catalog.channels import StoredChannel
from nearcast.pipeline.channels.execution import Prepared, prepare
from nearcast.pipeline.channels.language import Channel
from nearcast.pipeline.feeds import Feeds
from nearcast.pipeline.service.results import Results
from nearcast.pipeline.service.settings import ServiceSettings
from nearcast.pipeline.service.waiting import Commits

Schemas = Mapping[str, Mapping[str, str]]


class Engine(Protocol):
    """What the API asks of the part that runs Spark. Calls block; none is made on the event loop."""

    @property
    def state(self) -> str:
        """starting, running, or why it does not run."""

    @property
    def feeds(self) -> Feeds:
        """To make, change and drop feeds."""

    @property
    def trouble(self) -> str:
        """What failed lately that nobody had thought of; empty if nothing did."""

    @property
    def uncollected(self) -> list[str]:
        """Feeds that no agent has collected for a while, each with what to do."""

    def analyse(self, channel: Channel, schemas: Schemas) -> Prepared:
        """Raises `InvalidChannel`."""

    def load(self, name: str, file: Path, *, file_format: str, schema: str, key: str) -> None:
        """Replace a static dataset by a file's records."""

    def changed(self) -> None:
        """Channels or static datasets are not what they were: look at them."""

    def problem(self, channel: StoredChannel) -> str:
        """Why the channel's last execution failed; empty if it did not."""


class CatalogOnly:
    """The engine of a service without Spark: it answers for what is stored, and runs nothing."""

    state = "none"
    trouble = ""

    @property
    def uncollected(self) -> list[str]:
        return []

    def analyse(self, channel: Channel, schemas: Schemas) -> Prepared:
        return prepare(channel, schemas)

    def load(self, name: str, file: Path, *, file_format: str, schema: str, key: str) -> None:
        raise EngineNotReady("this service runs without Spark")

    @property
    def feeds(self) -> Feeds:
        raise EngineNotReady("this service runs without Spark")

    def changed(self) -> None:
        """Nothing runs."""

    def problem(self, channel: StoredChannel) -> str:
        return ""


class EngineNotReady(Exception):
    """Spark is starting, or does not run."""

    def __init__(self, problem: str, *, starting: bool = False) -> None:
        super().__init__(problem)
        self.starting = starting  # it is worth asking again


class Service:
    """One per app, in `app.state.service`."""

    def __init__(self, catalog: Catalog, settings: ServiceSettings, engine: Engine) -> None:
        self.catalog = catalog
        self.settings = settings
        self.engine = engine
        self.results = Results(catalog.warehouse.results)
        self.commits = Commits(settings.limits.long_polls)
        catalog.executions.on_commit(self.commits.happened)


def _service(request: Request) -> Any:
    return request.app.state.service


ServiceOf = Annotated[Service, Depends(_service)]
