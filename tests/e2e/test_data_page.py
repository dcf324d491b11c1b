"""docs/data.md, run as it is written: servers are there already, everything else is started by the page's commands.

One report goes the whole way: published, collected, stored, joined by Spark, fetched by a gateway and printed by Ann's
program, which is moved to another gateway afterwards.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from documented import Page
from reader import REPOSITORY, Reader, neighbouring_ports

from nearcast.runtime.servers import LocalServer
from nearcast.testing.waiting import wait_until

pytestmark = [pytest.mark.live, pytest.mark.timeout(400), pytest.mark.xdist_group("heavy")]

DATA_PAGE = REPOSITORY / "docs" / "data.md"
SHELTERS = "name,lat,lon\ncentral station,60.1710,24.9410\nfar away,61.5,23.8\n"
START_S = 240.0  # Spark on a busy machine

# One process runs each piece of Spark's code a few times: compiling it well costs more than it saves.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def until_spark_runs(data: str) -> None:
    def running() -> bool:
        try:
            return bool(httpx.get(f"{data}/health").json()["spark"] == "running")
        except httpx.TransportError:
            return False  # it does not listen yet

    wait_until(running, "Spark runs", START_S)


def follow_the_page(folder: Path, store: LocalServer, paris: LocalServer, other: LocalServer) -> None:
    data, gateway, other_gateway = (f"127.0.0.1:{port}" for port in neighbouring_ports(3))
    here = {
        "redis://store.example.com:6379": store.url,
        "redis://127.0.0.1:6379": paris.url,
        "redis://paris.example.com:6379": paris.url,
        "https://paris.example.com": f"http://{gateway}",
        "0.0.0.0:8080": gateway,
        "/var/lib/nearcast": str(folder / "data"),
        "nearcast data --store": f"nearcast data --listen {data} --master local[2] --store",
        "PERIOD 10 SECONDS": "PERIOD 1 SECOND",
    }
    page = Page.read(DATA_PAGE, here)
    (agent,) = (command for command in page.commands if command.text.startswith("nearcast agent"))
    beside_the_other = agent.text.replace("--broker b1", "--broker b2").replace(paris.url, other.url)
    (folder / "shelters.csv").write_text(SHELTERS)
    environment = {"NEARCAST_URL": paris.url, "NEARCAST_DATA": f"http://{data}", "JAVA_TOOL_OPTIONS": QUICK}
    with Reader(folder, environment) as reader:
        reader.open_terminals(page)
        reader.serve(replace(agent, text=beside_the_other.replace(gateway, other_gateway)))
        until_spark_runs(f"http://{data}")
        reader.follow(page)
        ann, _ = reader.programs
        ann.until_printed(2)
        assert ann.printed == "waiting for reports\n" + page.texts("text")[0]
        assert (folder / "report.png").stat().st_size > 1000


def test_the_data_page_does_what_it_says(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            await LocalServer.start() as store,
            await LocalServer.start() as paris,
            await LocalServer.start() as other,
        ):
            await asyncio.to_thread(follow_the_page, tmp_path, store, paris, other)

    asyncio.run(scenario())
