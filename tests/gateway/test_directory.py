"""The directory on a real server: cursors only grow, and parameters stay as they are."""

from __future__ import annotations

import asyncio

import pytest

from nearcast.errors import Refused
from nearcast.gateway.directory import Directory, Entry, StoreConnection
from nearcast.gateway.users import Users
from nearcast.runtime.servers import LocalServer

pytestmark = pytest.mark.live

PARAMETERS = {"kind": 'a "cursor":7} b', "cursor": 12, "lat": 48.856613123456789, "big": 2**53 + 1, "none": None}


def test_what_a_gateway_must_know_after_a_restart() -> None:
    async def scenario() -> None:
        store = await LocalServer.start()
        server, other_server = StoreConnection(store.url), StoreConnection(store.url)
        directory, other, users = Directory(server), Directory(other_server), Users(server)
        try:
            await users.register("ann")
            now = (await users.registrations(["ann"]))["ann"]

            entry = Entry("near_me", PARAMETERS, from_execution=5)
            assert await directory.add("ann", now, "b1", "near_me-1", entry) == entry
            later = Entry("near_me", PARAMETERS, from_execution=9)
            assert await directory.add("ann", now, "b1", "near_me-1", later) == entry

            await directory.advance([("ann", "near_me-1", 8), ("ann", "gone-1", 3), ("bob", "near_me-1", 3)])
            await other.advance([("ann", "near_me-1", 6)])
            await other.advance([])
            assert await directory.entries("ann") == {"near_me-1": Entry("near_me", PARAMETERS, 5, 8)}
            assert await directory.entries("bob") == {}

            await other.settle("ann", now, "b2", ["near_me-1"])
            assert await directory.homes(["ann", "bob"]) == {"ann": "b2", "bob": ""}
            assert await directory.holders("b1") == {"near_me-1": ["ann"]}
            assert not await directory.leave("ann", "b2", ["near_me-1"])
            assert await directory.leave("ann", "b1", ["near_me-1"])
            assert await directory.holders("b1") == {}
            assert await directory.holders("b2") == {"near_me-1": ["ann"]}
            await other.remove("ann", "b2", "near_me-1")
            assert await directory.holders("b2") == {}
            assert await directory.entries("ann") == {}

            with pytest.raises(Refused, match="was reset or removed"):
                await directory.add("ann", "before", "b1", "near_me-1", entry)
            with pytest.raises(Refused, match="was reset or removed"):
                await directory.settle("ann", "before", "b1", ["near_me-1"])
            assert (await directory.entries("ann"), await directory.holders("b1")) == ({}, {})

            assert await directory.data_url() == ""
            await directory.announce("b1", "http://one")
            await other.announce("b2", "http://two")
            await other.withdraw("b2")
            assert await directory.gateways() == {"b1": "http://one"}
        finally:
            await server.close()
            await other_server.close()
            await store.stop()

    asyncio.run(scenario())
