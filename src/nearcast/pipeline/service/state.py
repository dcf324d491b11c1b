"""What all routes share: the settings, the catalogue, the results, waiting long polls, and the engine with Spark."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec
from fastapi import Depends, Request

from nearcast.errors import UsageError
from nearcast.pipeline.catalog.catalog import Catalog
from nearcast.pipeline.catalog.channels import StoredChannel
from nearcast.pipeline.catalog.database import CatalogFull, require_positive
from nearcast.pipeline.channels.execution import Prepared, prepare
from nearcast.pipeline.channels.language import Channel
from nearcast.pipeline.feeds import Feeds
from nearcast.pipeline.service.results import Results

# --- settings


class RequestLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one request, and of all waiting ones together; anything above is refused."""

    wanted: int = 10_000  # subscriptions in one call
    long_polls: int = 1000  # at once
    json_bytes: int = 8 << 20  # of a request's body
    dataset_bytes: int = 256 << 20  # of a dataset's file

    def __post_init__(self) -> None:
        require_positive(self)


class ServiceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How the data cluster process can be configured. The defaults suit one machine."""

    token: str = ""  # bearer token that callers must send, and that allows everything; empty: none
    gateway_token: str = ""  # allows what gateways need; empty: they use the other one
    executions_at_once: int = 2  # of all channels; each uses all cores for part of its time
    keep_s: float = 24 * 3600.0  # how long results are kept; those that no gateway has fetched yet, longer
    keep_executions: int = 1000  # of each channel, at most: the results of older ones are dropped, fetched or not
    broker_away_s: float = 7 * 86400.0  # a broker not heard from for this long loses its subscriptions
    keep_records_s: float = 0.0  # in datasets that feeds fill, without a key; 0: forever
    telemetry: bool = True  # aggregate the agents' reports too
    housekeeping_s: float = 30.0  # between two rounds of retention and compaction
    limits: RequestLimits = RequestLimits()

    def __post_init__(self) -> None:
        if self.gateway_token and not self.token:
            raise UsageError(
                "NEARCAST_GATEWAY_TOKEN is set, NEARCAST_DATA_TOKEN is not: set it too, no token is checked without it"
            )
        if self.gateway_token and self.gateway_token == self.token:
            raise UsageError("NEARCAST_GATEWAY_TOKEN and NEARCAST_DATA_TOKEN are equal: give gateways their own token")
        if self.executions_at_once < 1:
            raise UsageError(f"executions_at_once is {self.executions_at_once}: give at least 1")
        if self.keep_s <= 0 or self.keep_executions < 1:
            raise UsageError("keep_s must be above 0 and keep_executions at least 1: subscribers fetch what is kept")
        if self.broker_away_s <= 0:
            raise UsageError(f"broker_away_s is {self.broker_away_s}: give a number of seconds above 0")
        if self.housekeeping_s <= 0:
            raise UsageError(f"housekeeping_s is {self.housekeeping_s}: give a number of seconds above 0")


# --- long polls


class Commits:
    """The long polls that wait for a commit: woken from any thread, limited in number, ended when the process stops."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._polls: set[Poll] = set()
        self._closed = False

    @contextlib.contextmanager
    def poll(self) -> Iterator[Poll]:
        """Open a poll. Do this before the first look at the catalogue, so that a commit after that look wakes it."""
        with self._lock:
            if len(self._polls) >= self._most:
                raise CatalogFull(f"{self._most} long polls are open", "ask again later, or raise the limit")
            poll = Poll()
            self._polls.add(poll)
            if self._closed:
                poll.end()
        try:
            yield poll
        finally:
            with self._lock:
                self._polls.discard(poll)

    def happened(self) -> None:
        with self._lock:
            for poll in self._polls:
                poll.wake()

    def close(self) -> None:
        """No poll waits from now on."""
        with self._lock:
            self._closed = True
            for poll in self._polls:
                poll.end()


class Poll:
    """One waiting call."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._ended = False

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # its loop has ended, and with it the waiting call
            self._loop.call_soon_threadsafe(self._event.set)

    def end(self) -> None:
        self._ended = True
        self.wake()

    async def wait(self, deadline_s: float) -> bool:
        """Wait for the next commit; False at the deadline (by the loop's clock), or when the process stops."""
        if self._ended:
            return False
        try:
            async with asyncio.timeout_at(deadline_s):
                await self._event.wait()
        except TimeoutError:
            return False
        self._event.clear()
        return not self._ended


# --- the engine


Schemas = Mapping[str, Mapping[str, str]]


class Engine(Protocol):
    """What the API asks of the part that runs Spark. Calls block; none is made on the event loop."""

    @property
    def state(self) -> str:
        """starting, running, or why it does not run."""

    @property
    def feeds(self) -> Feeds:
        """To create, change and drop feeds."""

    @property
    def trouble(self) -> str:
        """What failed unexpectedly in the last minute; empty if nothing did."""

    @property
    def feeds_problem(self) -> str:
        """What keeps feeds from being read; empty if nothing does."""

    def analyse(self, channel: Channel, schemas: Schemas) -> Prepared:
        """Raises `InvalidChannel`."""

    def load(self, name: str, file: Path, *, file_format: str, schema: str, key: str) -> None:
        """Replace a static dataset with a file's records."""

    def changed(self) -> None:
        """Channels or static datasets have changed: look at them again."""

    def problem(self, channel: StoredChannel) -> str:
        """Why the channel's last execution failed; empty if it did not."""


class CatalogOnly:
    """The engine of a service without Spark: it serves what is stored, and runs nothing."""

    state = "none"
    trouble = feeds_problem = ""

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
        self.starting = starting  # then it is worth trying again


class Service:
    """What the routes use. One per app, in `app.state.service`."""

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
