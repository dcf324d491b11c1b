"""Everything the emergency workload needs, as real processes: brokers with gateways, and a data cluster.

async with await EmergencyStage.start(world, EmergencyCluster(brokers=5)) as stage:
    url = await stage.door("u00001")
    await stage.kill_data_cluster()
"""

from __future__ import annotations

import csv
import io
import tempfile
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import msgspec

from nearcast.errors import Unavailable
from nearcast.pipeline.storage import Warehouse
from nearcast.subscriber.transport import request_broker
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.data_cluster import LocalDataCluster
from nearcast.workloads.emergency.audit import Batched, EmergencyReference, Reading
from nearcast.workloads.emergency.scenario import (
    DATASETS,
    LOCATIONS,
    REPORTS,
    SHELTERS,
    EmergencyChannel,
    EmergencyWorld,
)

_ANSWER_S = 60.0  # Spark analyses a channel when it is created
_HISTORY = 1000  # executions of a channel to ask for: more than a run has


class EmergencyCluster(msgspec.Struct, frozen=True, kw_only=True):
    """The size of the cluster, and how subscribers are balanced: options of `nearcast controller`."""

    brokers: int = 5
    master: str = "local[2]"
    balancing: tuple[str, ...] = ()


class EmergencyStage:
    """The running processes, and what a run asks of them."""

    def __init__(
        self,
        world: EmergencyWorld,
        cluster: LocalCluster,
        data: LocalDataCluster,
        warehouse: Warehouse,
        stack: AsyncExitStack,
    ) -> None:
        self.world = world
        self.cluster = cluster
        self.data = data
        self._warehouse = warehouse
        self._stack = stack
        self._rest = httpx.AsyncClient(base_url=data.url, timeout=_ANSWER_S, trust_env=False)

    @classmethod
    async def start(cls, world: EmergencyWorld, settings: EmergencyCluster) -> Self:
        async with AsyncExitStack() as stack:
            sites = zip(*(part.tolist() for part in world.settings.city.broker_sites(settings.brokers)), strict=True)
            names = [f"b{number}" for number in range(1, settings.brokers + 1)]
            cluster = await stack.enter_async_context(
                await LocalCluster.start(
                    names,
                    controller_options=settings.balancing,
                    gateways=True,
                    positions=dict(zip(names, sites, strict=True)),
                )
            )
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nearcast-emergency-")))
            data = await LocalDataCluster.start(cluster.store_url, folder / "data", settings.master, folder)
            stack.push_async_callback(data.stop)
            await data.until_running()
            return cls(world, cluster, data, Warehouse(folder / "data"), stack.pop_all())
        raise AssertionError("unreachable")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        await self._rest.aclose()
        await self._stack.aclose()

    # --- set up

    async def prepare(self, channels: tuple[EmergencyChannel, ...]) -> None:
        """Create the feeds, the shelters and the channels."""
        for dataset in DATASETS:
            if dataset.topic:
                await self.post(
                    "/feeds", name=dataset.name, topic=dataset.topic, schema=dataset.schema, key=dataset.key
                )
        await self._load_shelters()
        for channel in channels:
            await self.post("/channels", text=channel.text)

    async def _load_shelters(self) -> None:
        query = {"format": "csv", "schema": next(dataset.schema for dataset in DATASETS if dataset.name == SHELTERS)}
        answer = await self._rest.post(
            f"/datasets/{SHELTERS}",
            params=query,
            content=self.world.shelters_csv().encode(),
            headers={"content-type": "text/csv"},
        )
        _checked(answer)

    async def door(self, user: str) -> str:
        """The gateway that the controller chooses for a user, by its position when it first asks."""
        lats, lons = self.world.positions(0.0)
        number = self.world.users.index(user)
        entry = next(iter(self.cluster.gateway_urls.values()))
        _, url = await request_broker(entry, user, float(lats[number]), float(lons[number]))
        return url

    # --- the data cluster

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        return _checked(await self._rest.post(path, json=body))

    async def get(self, path: str, **query: Any) -> dict[str, Any]:
        return _checked(await self._rest.get(path, params=query))

    async def kill_data_cluster(self) -> None:
        """Kill it with SIGKILL and start it again; returns when it answers."""
        await self.data.again()
        await self.data.until_running()

    async def feed(self, name: str) -> dict[str, Any]:
        feeds = (await self.get("/feeds"))["feeds"]
        return next(feed for feed in feeds if feed["name"] == name)

    async def readings(self, channel: str) -> list[Reading]:
        """What each committed execution of a channel read, the oldest first."""
        history = (await self.get(f"/channels/{channel}/executions", last=_HISTORY))["executions"]
        return [Reading.of(entry) for entry in reversed(history) if entry["committed"] is not None]

    async def is_done(self, channels: tuple[EmergencyChannel, ...], reports: int) -> bool:
        """Whether all reports are ingested, and every channel has read all of them."""
        feed = await self.feed(REPORTS)
        if feed["records"] < reports:
            return False
        looked = [await self.readings(channel.name) for channel in channels]
        return all(readings and readings[-1].reports[1] >= feed["position"] for readings in looked)

    def reference(self) -> EmergencyReference:
        """The reference, from the files of the data cluster, which say which record came with which batch."""
        rows = csv.DictReader(io.StringIO(self.world.shelters_csv()))
        shelters = [
            {**row, "lat": float(row["lat"]), "lon": float(row["lon"]), "capacity": int(row["capacity"])}
            for row in rows
        ]
        return EmergencyReference(self.batched(REPORTS, "id"), self.batched(LOCATIONS, "user_id"), shelters)

    def batched(self, dataset: str, key: str) -> list[Batched]:
        """The records of a dataset with their batches, in order.

        Merged batches exist in two folders for a while, and count once. A record that is twice in one folder counts
        twice.
        """
        import pyarrow.parquet as pq

        found: dict[tuple[int, Any, int], dict[str, Any]] = {}
        for folder in sorted(self._warehouse.dataset(dataset).iterdir()):
            seen: Counter[tuple[int, Any]] = Counter()
            for file in sorted(folder.glob("*.parquet")):
                for row in pq.ParquetFile(file).read().to_pylist():
                    record = (row["_batch"], row[key])
                    seen[record] += 1
                    found[*record, seen[record]] = row
        return [Batched(batch, row) for (batch, _, _), row in sorted(found.items(), key=lambda item: item[0])]


def _checked(answer: httpx.Response) -> dict[str, Any]:
    if answer.status_code >= 400:
        raise Unavailable(f"the data cluster answered {answer.status_code}: {answer.text[:500]}")
    return answer.json() if answer.content else {}
