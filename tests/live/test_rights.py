"""Every role does its work with the rights of docs/security.md, and a hostile client stays within its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

import nearcast
import nearcast.asyncio
from nearcast import Message
from nearcast.core.model.logs import Log
from nearcast.core.model.membership import BrokerInfo, Membership, encode_membership
from nearcast.core.model.names import CLAIM_KEY, HOURS_KEY, MEMBERS, PROVIDER_CHANNEL, READY_KEY
from nearcast.core.model.placement import Mode
from nearcast.core.wire import bus
from nearcast.gateway.coordination import BusCoordination, Whereabouts
from nearcast.gateway.directory import StoreConnection
from nearcast.gateway.server import GatewayServer, listen
from nearcast.gateway.service import Gateway
from nearcast.gateway.users import Users
from nearcast.pipeline.catalog.feeds import ReadEntry
from nearcast.pipeline.logs import ClusterLogs
from nearcast.pipeline.service.process import Announcement
from nearcast.pipeline.sources.cluster_streams import ClusterStreams
from nearcast.pipeline.sources.logs import Options, Servers
from nearcast.pipeline.sources.parts import Extent, entries
from nearcast.pipeline.sources.server import RespConnection
from nearcast.runtime.calibration import CalibrationSettings, calibrate
from nearcast.runtime.console import Console, find_store
from nearcast.runtime.driver import parse_url
from nearcast.runtime.provider import DryProvider, ProviderDesk
from nearcast.runtime.requester import Requester
from nearcast.runtime.servers import LocalServer
from nearcast.subscriber.client import Subscriber
from nearcast.testing.waiting import until

sys.path.insert(0, str(Path(__file__).parent))

sys.path.insert(0, str(Path(__file__).parents[1] / "gateway"))

from gateway_world import ROW, DataCluster, take_results
from rights import BROKERS, PAGE, STORE, as_admin, guarded_cluster, refusals, rules_of, url

pytestmark = [pytest.mark.live, pytest.mark.xdist_group("rights")]  # one world for all

TEST_S = 20.0
FORGED = 10**6  # a version above all


class World:
    """A cluster with the page's rules. Tests run in its loop."""

    def __init__(self, runner: asyncio.Runner, brokers: dict[str, LocalServer], store: LocalServer) -> None:
        self.runner = runner
        self.brokers = brokers
        self.store = store

    def run(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """What the scenario does is allowed by the rules: no server refuses anything."""
        self.runner.run(asyncio.wait_for(self._watched(scenario), TEST_S))

    async def _watched(self, scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await scenario()
        assert [refusal for server in self.servers for refusal in await refusals(server)] == []

    @property
    def servers(self) -> list[LocalServer]:
        return [*self.brokers.values(), self.store]

    @property
    def urls(self) -> list[str]:
        return [url(server, "app") for server in self.brokers.values()]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with asyncio.Runner() as runner:
        cluster = guarded_cluster()
        guarded = runner.run(cluster.__aenter__())
        yield World(runner, guarded.brokers, guarded.store)
        runner.run(cluster.__aexit__(None, None, None))


async def payloads(subscription: nearcast.Subscription, count: int) -> list[object]:
    async with asyncio.timeout(5):
        events = [await subscription.get() for _ in range(count)]
    return [event.payload if isinstance(event, Message) else event for event in events]


def test_the_page_has_rules_for_every_role() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert {rule.user for rule in rules_of(text, BROKERS)} == {"app", "agent", "operator", "calibrator", "data"}
    roles = {"agent", "controller", "provider", "operator", "registrar", "data"}
    assert {rule.user for rule in rules_of(text, STORE)} == roles


def test_a_client_and_an_operator_need_no_more_than_their_rules(world: World) -> None:
    async def scenario() -> None:
        async with nearcast.connect(*world.urls) as client, Console(url(world.store, "operator")) as console:
            subscription, pattern = await client.subscribe("game:a"), await client.psubscribe("game:*")
            places = [(Mode.SINGLE, ("b1",)), (Mode.ALL_SUBSCRIBERS, ("b1", "b2")), (Mode.SINGLE, ("b2",))]
            for number, (mode, brokers) in enumerate(places):
                await console.move("game:a", mode, brokers)
                await client.publish("game:a", b"%d" % number)
            assert await payloads(subscription, 3) == await payloads(pattern, 3) == [b"0", b"1", b"2"]
        async with Console(url(world.brokers["b1"], "operator")) as console:
            assert set((await console.state()).brokers) == {"b1", "b2"}

    world.run(scenario)


def test_a_client_publishes_to_kept_topics_with_the_rules_added_for_it(world: World) -> None:
    async def scenario() -> None:
        async with nearcast.connect(*world.urls) as client, Console(url(world.store, "operator")) as console:
            await console.create_log(Log("kept", 0, ("game:kept*",), 3600.0, 1 << 20))
            subscription = await client.subscribe("game:kept")
            for number in range(3):
                await client.publish("game:kept", b"%d" % number)
            assert await payloads(subscription, 3) == [b"0", b"1", b"2"]
            await console.drop_log("kept")
            await client.publish("game:kept", b"3")
            assert await payloads(subscription, 1) == [b"3"]

    world.run(scenario)


def test_logs_are_read_alone_and_in_groups_with_the_rules_added_for_it(world: World) -> None:
    async def scenario() -> None:
        async with nearcast.connect(*world.urls) as client, Console(url(world.store, "operator")) as console:
            await console.create_log(Log("read", 0, ("game:read*",), 3600.0, 1 << 20))
            for number in range(3):
                await client.publish("game:read", b"%d" % number)
            assert [await payload_of(client.read("read"))] == [b"0"]
            async with client.read("read", group="billing") as reader:
                assert await payload_of(reader) == b"0"
                await reader.commit()
            await console.drop_log("read")

    world.run(scenario)


async def payload_of(reader: nearcast.Reader) -> bytes:
    event = await asyncio.wait_for(reader.get(), 10)
    assert isinstance(event, Message), event
    return event.payload


def test_the_drop_in_counts_with_the_rules_added_for_it(world: World) -> None:
    async def scenario() -> None:
        async with nearcast.asyncio.Redis.from_url(world.urls[0]) as redis, redis.pubsub() as pubsub:
            await pubsub.subscribe("game:counted")
            assert await redis.publish("game:counted", "x") == 1
            assert await redis.pubsub_numsub("game:counted") == [(b"game:counted", 1)]
            assert await redis.pubsub_channels("game:c*") == [b"game:counted"]
            assert await redis.pubsub_numpat() == 0

    world.run(scenario)


def test_feeds_are_made_and_read_with_the_rules_of_the_data_cluster(world: World) -> None:
    store = url(world.store, "data")

    async def scenario() -> None:
        logs = ClusterLogs(store)
        log = await asyncio.to_thread(logs.create, Log("scores", 0, ("game:s*",), 3600.0, 1 << 20))
        async with nearcast.connect(*world.urls) as client:
            await client.publish("game:scores", b"1")
        assert await asyncio.to_thread(logs.covering, "game:scores") == log
        (stream,) = await asyncio.to_thread(logs.positions, log)
        await asyncio.to_thread(_read, store, log.key, stream)
        await asyncio.to_thread(logs.note_read, {stream: ReadEntry("5-0", 1)})
        await asyncio.to_thread(logs.forget_reader, log.key)
        await asyncio.to_thread(logs.drop, "scores")

    world.run(scenario)


def _read(store: str, log: str, stream: str) -> None:
    """What the streaming source asks, and what its tasks and the telemetry job ask."""
    servers = Servers(Options(url=store, logs=frozenset([log])))
    assert servers.kept()[stream] == Extent(0, 1)
    _, credentials = parse_url(store)
    with RespConnection(servers.parts()[stream].url, credentials) as server:
        assert [entry.position for page in entries(server, stream, 0, 1) for entry in page] == [1]
    with ClusterStreams(store) as streams:
        reports = streams.names(["nc:reports"])
        assert reports == ["b1/nc:reports", "b2/nc:reports"]
        for name, found in streams.views(reports).items():
            assert found is not None
            last, count = streams.step(name, "0-0", 1)
            assert count == len([record for page in streams.pages(name, "0-0", last) for record in page]) == 1


def test_a_gateway_and_the_data_cluster_need_no_more_than_their_rules(world: World, tmp_path: Path) -> None:
    store = url(world.store, "agent")

    async def scenario() -> None:
        data = DataCluster(tmp_path, url(world.store, "data"))
        await data.start()
        await data.create_channel()
        listening, address = listen("127.0.0.1:0")
        coordination = BusCoordination(store, Whereabouts())
        gateway = Gateway("b1", address, url(world.brokers["b1"], "agent"), store, coordination=coordination)
        server = GatewayServer(gateway, listening)
        await server.start()
        async with Subscriber.connect(address, "ann") as ann:
            fire = await ann.subscribe("by_kind", kind="fire")
            await data.execute({fire: [ROW]})
            assert await take_results(ann, 1) == [1]
            await ann.unsubscribe(fire)
        await _settle_elsewhere(gateway, fire)
        for _ in range(2):  # the second time an hour is over
            await gateway._attendance.count()
            await gateway._store.ask("HSET", HOURS_KEY, "at", 1)
        await gateway._attendance.forget()
        await server.stop()
        await data.close()

    world.run(scenario)


async def _settle_elsewhere(gateway: Gateway, subscription: str) -> None:
    """What gateways write down when a user moves, and read when they start."""
    await gateway.users.register("bob")
    registration = (await gateway.users.registrations(["bob"]))["bob"]
    directory = gateway.directory
    await directory.settle("bob", registration, "b1", [subscription])
    await directory.settle("bob", registration, "b2", [subscription])
    assert await directory.leave("bob", "b1", [subscription])
    assert await directory.holders("b2") == {subscription: ["bob"]}


def test_users_are_administered_with_the_rules_of_the_registrar(world: World) -> None:
    async def scenario() -> None:
        registrar = url(world.store, "registrar")
        store = StoreConnection(await find_store(registrar))
        users = Users(store)
        await users.register("eve")
        await users.reset("eve")
        assert "eve" in [user.name async for user in users.all()]
        await users.rotate(at_once=False)
        await users.remove("eve")
        await store.close()

    world.run(scenario)


def test_the_data_cluster_says_where_it_is_with_its_rules(world: World) -> None:
    async def scenario() -> None:
        announcing = asyncio.create_task(Announcement(url(world.store, "data"), "http://127.0.0.1:9").keep())
        await until(lambda: as_admin(world.store, "EXISTS", "nc:data"))
        announcing.cancel()
        await asyncio.gather(announcing, return_exceptions=True)

    world.run(scenario)


def test_a_provider_and_a_calibrator_need_no_more_than_their_rules(world: World) -> None:
    async def scenario() -> None:
        provider = DryProvider()
        async with ProviderDesk(url(world.store, "provider"), provider):
            await as_admin(world.store, "PUBLISH", PROVIDER_CHANNEL, bus.encode(bus.Rent("b9", 1)).decode())
            await until(lambda: provider.calls == [("rent", "b9")], "the provider hears what is asked", TEST_S)
            settings = CalibrationSettings(seconds=1.0, subscribers=2)
            assert (await calibrate(url(world.brokers["b2"], "calibrator"), settings=settings)).peak_bytes_per_s > 0

    world.run(scenario)


# --- hostile clients


class Foreigner:
    """A server that is no broker, and what is said to it."""

    def __init__(self) -> None:
        self.heard: list[bytes] = []

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._hear, "127.0.0.1", 0)
        return f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *exc_info: object) -> None:
        self._server.close()

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.heard.append(await reader.read(1000))
        writer.close()


def test_a_hostile_client_cannot_send_others_to_a_foreign_address(world: World) -> None:
    foreigner = Foreigner()

    async def scenario() -> None:
        async with foreigner as address, nearcast.connect(world.urls[0]) as victim:
            hostile = Requester(world.urls[0])
            subscription = await victim.subscribe("game:b")
            brokers = dict.fromkeys(world.brokers, BrokerInfo(address))
            forged = encode_membership(Membership(FORGED, FORGED, brokers, tuple(brokers)))
            assert await hostile.ask("PUBLISH", MEMBERS, forged) == 1
            assert await hostile.ask("PUBLISH", MEMBERS, str(FORGED)) == 1
            for number in range(20):
                await victim.publish(f"game:b{number}", b"x")  # at both brokers
            await victim.publish("game:b", b"still here")
            assert await payloads(subscription, 1) == [b"still here"]
            await hostile.close()
        assert foreigner.heard == []

    world.run(scenario)


@pytest.mark.parametrize(
    "command",
    [
        ("HSET", MEMBERS, "document", "{}"),
        ("HSETNX", MEMBERS, "other", "{}"),
        ("EVAL", "return redis.call('HSETNX', 'nc:m', 'other', '{}')", 0),
        ("EVAL", "return redis.call('HSETNX', KEYS[1], 'other', '{}')", 1, MEMBERS),
        ("EVAL", "return redis.call('HSET', 'nc:r', 'game:a', '{}')", 0),
        ("EVAL", "return redis.call('HSETNX', 'nc:r', 'game:a', '{}')", 0),
        ("EVAL", "return redis.call('HSETNX', KEYS[1], 'game:a', '{}')", 1, "nc:r"),
        ("HSETNX", "nc:r", "game:a", "{}"),
        ("HSET", "nc:first", "game:a", "1"),
        ("HDEL", "nc:first", "game:a"),
        ("DEL", "nc:first"),
        ("EVAL", "return redis.call('HSET', 'nc:agent', 'granted', '9')", 0),
        ("HSET", CLAIM_KEY, "granted", "9"),
        ("SET", READY_KEY, "{}"),
        ("DEL", MEMBERS),
        ("HSET", "nc:r", "game:a", "{}"),
        ("PUBLISH", "other:topic", "x"),
        ("SUBSCRIBE", "nc:c:other:topic"),
        ("CLIENT", "LIST"),
    ],
)
def test_a_hostile_client_is_refused_what_is_not_its_own(world: World, command: tuple[str | bytes | int, ...]) -> None:
    async def scenario() -> None:
        hostile = Requester(world.urls[0])
        answer = await hostile.ask(*command)
        await hostile.close()
        assert "NOPERM" in str(answer) or "No permissions" in str(answer) or "ACL failure" in str(answer)
        assert len(await refusals(world.brokers["b1"])) == 1  # and `run` finds no other

    world.run(scenario)
