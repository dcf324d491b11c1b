"""Logs with a quorum, with the rights of docs/security.md and no others."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

import pytest

import nearcast
from nearcast import Message
from nearcast.core.model.logs import Log
from nearcast.core.model.placement import Mode
from nearcast.errors import Refused
from nearcast.runtime.console import Console
from nearcast.testing.waiting import until

sys.path.insert(0, str(Path(__file__).parent))

from rights import guarded_cluster, refusals, url

pytestmark = pytest.mark.live


async def payload_of(reader: nearcast.Reader) -> bytes:
    event = await asyncio.wait_for(reader.get(), 10)
    assert isinstance(event, Message), event
    return event.payload


def test_what_is_at_a_quorum_survives_a_server_with_the_rules_added_for_it() -> None:
    async def scenario() -> None:
        async with (
            guarded_cluster(replicas=True) as cluster,
            Console(url(cluster.store, "operator")) as console,
            nearcast.connect(*(url(server, "app") for server in cluster.brokers.values())) as client,
        ):

            async def created() -> bool:
                with contextlib.suppress(Refused):  # replicas are listed a moment after their brokers
                    return bool(await console.create_log(Log("kept", 0, ("game:kept",), 3600.0, 1 << 20, quorum=2)))
                return False

            await until(created, "a log with a quorum", 20)
            await console.move("game:kept", Mode.SINGLE, ["b1"])
            for number in range(3):
                await client.publish("game:kept", b"%d" % number, timeout_s=20)
            reader = await client.read("kept", group="billing")
            assert await payload_of(reader) == b"0"
            await reader.commit()
            for server in (*cluster.brokers.values(), *cluster.replicas, cluster.store):
                assert await refusals(server) == []
            cluster.brokers["b1"].kill()
            assert [await payload_of(reader), await payload_of(reader)] == [b"1", b"2"]
            await reader.commit()
            await client.publish("game:kept", b"3")
            assert await payload_of(reader) == b"3"
            for server in (cluster.brokers["b2"], *cluster.replicas, cluster.store):
                assert await refusals(server) == []

    asyncio.run(asyncio.wait_for(scenario(), 60))
