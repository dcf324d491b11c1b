"""The data cluster process: one folder, one catalogue, one Spark session, and the REST API over them.

A file lock refuses a second process on the same folder. The operating system releases the lock however the process
ends. SIGTERM and Ctrl-C stop it within seconds; what was not committed by then is done after the next start, as after a
kill.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import ipaddress
import json
import logging
import socket
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import uvicorn

from nearcast.core.model.names import DATA_KEY
from nearcast.errors import ClusterError, UsageError
from nearcast.pipeline.catalog.catalog import Catalog
from nearcast.pipeline.service.app import create_app
from nearcast.pipeline.service.engine import SparkEngine
from nearcast.pipeline.service.state import ServiceSettings
from nearcast.pipeline.sources.server import RespConnection
from nearcast.pipeline.spark import SessionSettings, open_session
from nearcast.runtime.workers import Troubles

# --- the announcement


RENEW_S = 2.0
LIFETIME_S = 10.0  # of the key: a killed process is forgotten after this

log = logging.getLogger("nearcast.data")


class Announcement:
    """Tells gateways where the data cluster is: a key on the store's server, renewed while the process lives.

    Renewing it also covers a server that was down for a while or has lost its memory.
    """

    def __init__(self, store_url: str, url: str, troubles: Troubles | None = None) -> None:
        self._store_url = store_url
        self._troubles = troubles or Troubles(log)
        self._entry = json.dumps({"url": url})

    async def keep(self) -> None:
        """Runs until cancelled; then the key is removed."""
        try:
            while True:
                await asyncio.to_thread(self._say)
                await asyncio.sleep(RENEW_S)
        finally:
            with contextlib.suppress(ClusterError):
                await asyncio.to_thread(self._take_back)

    def _say(self) -> None:
        try:
            with RespConnection(self._store_url) as connection:
                connection.ask("SET", DATA_KEY, self._entry, "PX", int(LIFETIME_S * 1000))
        except ClusterError as error:
            log.warning("cannot announce the data cluster's URL to gateways: %s", error)
        except Exception as error:
            self._troubles.note("announcing the data cluster's URL to gateways", error)

    def _take_back(self) -> None:
        with RespConnection(self._store_url) as connection:
            if connection.ask("GET", DATA_KEY) == self._entry.encode():
                connection.ask("DEL", DATA_KEY)


# --- the process


_LAST_ANSWERS_S = 2  # for requests in progress when the process is asked to stop


class ProcessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the process keeps everything, where it listens, and where the store's server is."""

    folder: Path
    store_url: str
    host: str = "127.0.0.1"
    port: int = 8100  # 0: any free port
    advertise: str = ""  # the URL for gateways; empty: that of host and port
    master: str = "local[*]"
    service: ServiceSettings = ServiceSettings()

    def __post_init__(self) -> None:
        if not self.service.token and not is_loopback(self.host):
            raise UsageError(
                f"--listen {self.host} would accept requests from anyone: set NEARCAST_DATA_TOKEN, for callers too, or "
                "listen on 127.0.0.1"
            )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def serve(settings: ProcessSettings, until: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run until `until` returns. Raises if Spark ends by itself."""
    with locked(settings.folder), listening(settings.host, settings.port) as listener:
        url = settings.advertise or f"http://{settings.host}:{listener.getsockname()[1]}"
        catalog = Catalog(settings.folder)
        try:
            await _serve(settings, catalog, listener, url, until)
        finally:
            catalog.close()


async def _serve(
    settings: ProcessSettings,
    catalog: Catalog,
    listener: socket.socket,
    url: str,
    until: Callable[[], Coroutine[Any, Any, None]],
) -> None:
    loop = asyncio.get_running_loop()
    spark_ended: asyncio.Future[None] = loop.create_future()
    troubles = Troubles(log)
    engine = SparkEngine(
        catalog,
        settings.service,
        partial(open_session, _session(settings)),
        settings.store_url,
        lambda error: loop.call_soon_threadsafe(_settle, spark_ended, error),
        troubles,
    )
    app = create_app(catalog, settings.service, engine)
    logging.getLogger("py4j").setLevel(logging.WARNING)  # it logs each callback server
    config = uvicorn.Config(
        app, log_config=None, access_log=False, ws="none", timeout_graceful_shutdown=_LAST_ANSWERS_S
    )
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    announcing = asyncio.create_task(Announcement(settings.store_url, url, troubles).keep())
    stop_requested = asyncio.create_task(until())
    engine.start()
    log.info("data cluster of %s at %s", settings.folder, url)
    try:
        done, _ = await asyncio.wait({serving, stop_requested, spark_ended}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        stop_requested.cancel()
        announcing.cancel()
        app.state.service.commits.close()
        server.should_exit = True
        await asyncio.to_thread(engine.stop)
        await asyncio.gather(serving, announcing, stop_requested, return_exceptions=True)


def _settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _session(settings: ProcessSettings) -> SessionSettings:
    conf = {
        # A long execution must not keep a feed's short batch waiting.
        "spark.scheduler.mode": "FAIR",
        # Batches are small, and each file costs more than its bytes.
        "spark.sql.files.openCostInBytes": "0",
    }
    return SessionSettings(
        master=settings.master,
        app_name="nearcast-data",
        shuffle_partitions=2,
        folder=settings.folder / "spark",
        conf=conf,
    )


class _Server(uvicorn.Server):
    """A server that leaves signals to the process, which has more to stop than this server."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock the folder for this process; raises UsageError if another process has it."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(
                f"{folder} is used by another data cluster process: stop it, or use another folder"
            ) from None
        yield


@contextlib.contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise ClusterError(f"cannot listen on {host}:{port} ({error.strerror}): give another --listen") from None
        yield listener
