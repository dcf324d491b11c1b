"""The real process: killed while records flow, refused twice on one folder, stopped; with Spark and a real server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

import nearcast
from nearcast.pipeline.sources.server import RespConnection
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.data_cluster import LocalDataCluster
from nearcast.testing.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

KINDS = ["fire", "flood", "storm", "quake"]
SHELTERS = {"fire": "hall", "flood": "hill"}
BY_KIND = (
    "CREATE CHANNEL by_kind(kind STRING) PERIOD 1 SECOND AS SELECT r.id, s.name AS shelter "
    "FROM NEW reports r LEFT JOIN shelters s ON s.kind = r.kind WHERE r.kind = :kind"
)
AT_ONCE = (
    "CREATE CHANNEL at_once(low INT, high INT) PERIOD 0.5 SECONDS CONTINUOUS AS "
    "SELECT id, kind FROM NEW reports WHERE level BETWEEN :low AND :high"
)
WAIT_S = 240.0  # for anything: the machine may be busy


# Each process runs each piece of Spark's code a few times: compiling it well costs more than it saves.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@pytest.fixture(autouse=True)
def quick_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", QUICK)


class Reporter:
    """Publishes reports, and knows what each subscription is to get."""

    def __init__(self, client: nearcast.Client, rng: random.Random) -> None:
        self.client = client
        self.rng = rng
        self.sent: list[dict[str, Any]] = []

    async def report_until(self, enough: asyncio.Event) -> None:
        while not enough.is_set():
            for _ in range(self.rng.randrange(1, 20)):
                await self.report()
            await asyncio.sleep(self.rng.uniform(0.02, 0.2))  # paces the load

    async def report(self) -> None:
        record = {"id": len(self.sent), "kind": self.rng.choice(KINDS), "level": self.rng.randrange(10)}
        await self.client.publish(f"emergency.{self.rng.randrange(5)}", json.dumps(record))
        self.sent.append(record)

    def expected(self, kinds: dict[str, str], levels: dict[str, tuple[int, int]]) -> Counter:
        """By a plain loop: subscription and row, how often."""
        found: Counter = Counter()
        for record in self.sent:
            for name, kind in kinds.items():
                if record["kind"] == kind:
                    found[(name, record["id"], SHELTERS.get(kind))] += 1
            for name, (low, high) in levels.items():
                if low <= record["level"] <= high:
                    found[(name, record["id"], record["kind"])] += 1
        return found


class Api:
    """The calls of a gateway."""

    def __init__(self, url: str) -> None:
        self.client = httpx.Client(base_url=url, timeout=WAIT_S)

    def made(self, method: str, path: str, **request: Any) -> Any:
        answer = self.client.request(method, path, **request)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def subscribe(self, channel: str, *parameters: dict[str, Any]) -> list[str]:
        wanted = [{"channel": channel, "parameters": each} for each in parameters]
        answer = self.made("POST", "/subscriptions", json={"broker": "b1", "wanted": wanted})
        assert all(subscribed["from_execution"] == 1 for subscribed in answer["subscriptions"])
        return [subscribed["subscription"] for subscribed in answer["subscriptions"]]

    def results(self, channel: str, subscriptions: list[str]) -> Counter:
        """All that is stored, fetched by its index."""
        found: Counter = Counter()
        for name in subscriptions:
            for each in self.made("GET", f"/subscriptions/{name}/executions?limit=10000")["executions"]:
                rows = self.made("GET", f"/results/{channel}/{each['execution']}/{name}")["rows"]
                assert len(rows) == each["rows"]
                found.update((name, *row.values()) for row in rows)
        return found

    def set_up(self) -> tuple[dict[str, str], dict[str, tuple[int, int]]]:
        """A feed, a dataset, two channels, and the subscriptions of a broker."""
        schema = "id INT NOT NULL, kind STRING, level INT"
        self.made("POST", "/feeds", json={"name": "reports", "topic": "emergency.*", "schema": schema})
        csv = "kind,name\n" + "".join(f"{kind},{name}\n" for kind, name in SHELTERS.items())
        self.made("POST", "/datasets/shelters?format=csv", content=csv, headers={"content-type": "text/csv"})
        for text in (BY_KIND, AT_ONCE):
            self.made("POST", "/channels", json={"text": text})
        self.made("PUT", "/brokers/b1", json={"url": "http://b1"})
        kinds = self.subscribe("by_kind", *({"kind": kind} for kind in KINDS))
        levels = [(0, 3), (2, 5), (9, 9)]
        ranges = self.subscribe("at_once", *({"low": low, "high": high} for low, high in levels))
        return dict(zip(kinds, KINDS, strict=True)), dict(zip(ranges, levels, strict=True))


def java_of(pid: int) -> list[int]:
    """Java processes that the process started."""
    found = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
    rows = [line.split(None, 2) for line in found.splitlines()]
    return [int(child) for child, parent, name in rows if int(parent) == pid and name == "java"]


def is_alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "\nState:\tZ" not in status.read_text()


async def eventually(check: Any, what: str) -> None:
    await until(lambda: asyncio.to_thread(check), what, WAIT_S)


async def killed_and_started_again(cluster: LocalDataCluster, rng: random.Random) -> None:
    """At a random moment of its work; Java must not outlive it for long, and its successor must wait for that."""
    await asyncio.sleep(rng.uniform(0.5, 4.0))  # the moment
    (java,) = java_of(cluster.process.pid)
    await cluster.kill()
    await cluster.again()
    await eventually(lambda: not is_alive(java), "Java outlived the process")
    await cluster.until_running()


def all_there(api: Api, channel: str, subscriptions: dict[str, Any], expected: Counter) -> bool:
    return api.results(channel, list(subscriptions)).total() >= sum(
        count for key, count in expected.items() if key[0] in subscriptions
    )


async def scenario(folder: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    async with await LocalCluster.start(brokers=2) as brokers, contextlib.AsyncExitStack() as stack:
        cluster = await LocalDataCluster.start(brokers.store_url, folder / "data", log_folder=folder)
        stack.push_async_callback(cluster.stop)
        await cluster.until_running()
        refused = await asyncio.to_thread(second_process, brokers.store_url, folder / "data")
        assert refused.returncode == 2
        assert "is used by another data cluster process" in refused.stderr
        store = stack.enter_context(RespConnection(brokers.store_url))
        assert json.loads(store.ask("GET", "nc:data")) == {"url": cluster.url}
        api = Api(cluster.url)
        kinds, levels = await asyncio.to_thread(api.set_up)
        client = await stack.enter_async_context(await nearcast.connect(brokers.urls["b1"]))
        reporter = Reporter(client, rng)

        enough = asyncio.Event()
        reporting = asyncio.create_task(reporter.report_until(enough))
        for _ in range(kills):
            await killed_and_started_again(cluster, rng)
        enough.set()
        await reporting
        expected = reporter.expected(kinds, levels)
        for channel, held in (("by_kind", kinds), ("at_once", levels)):
            await eventually(
                lambda c=channel, h=held: all_there(api, c, h, expected), f"results of {channel}, seed {seed}"
            )
        found = api.results("by_kind", list(kinds)) + api.results("at_once", list(levels))
        assert found == expected, f"seed {seed}"
        assert expected.total() > 50
        notified = api.made("GET", "/brokers/b1/notifications?after=0&wait_s=0")["notifications"]
        assert {name for told in notified for name in told["subscriptions"]} == {name for name, *_ in expected}
        assert len(notified) == len({(told["channel"], told["execution"]) for told in notified})

        (java,) = java_of(cluster.process.pid)
        await cluster.stop()
        assert cluster.process.returncode == 0, cluster.process.last_lines(20)
        assert not is_alive(java)
        assert store.ask("GET", "nc:data") is None
        assert "Traceback" not in cluster.process.log.read_text()


def second_process(store_url: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nearcast", "data", "--store", store_url, "--folder", str(folder)]
    return subprocess.run(
        [*command, "--listen", "127.0.0.1:0"], capture_output=True, text=True, check=False, timeout=60
    )


def test_a_kill_while_records_flow_loses_and_repeats_nothing(tmp_path: Path) -> None:
    asyncio.run(scenario(tmp_path, kills=1, seed=random.SystemRandom().randrange(10**6)))


@pytest.mark.slow
def test_several_kills_while_records_flow_lose_and_repeat_nothing(tmp_path: Path) -> None:
    asyncio.run(scenario(tmp_path, kills=3, seed=random.SystemRandom().randrange(10**6)))
