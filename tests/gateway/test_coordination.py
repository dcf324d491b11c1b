"""The gateway's side of coordination: reports, questions and orders over a real bus, with a real controller."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from nearcast.core.wire import bus
from nearcast.errors import ConnectFailed, Refused, UsageError
from nearcast.gateway.coordination import BusCoordination, Whereabouts
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.waiting import until

WAIT_S = 30.0
BALANCE = ["--balance", "ldm", "--balance-set", "beta_bytes_per_s=0", "--balance-set", "theta_bytes_per_s=0"]


class PlayedGateway:
    """What coordination sees of a gateway: users, who go when they are told to."""

    def __init__(self, broker: str, all_gateways: dict[str, PlayedGateway]) -> None:
        self.broker = broker
        self.url = f"http://{broker}.example.com"
        self.users: dict[str, list[str]] = {}
        self.told: list[tuple[str, str, str]] = []
        self._all = all_gateways

    def online(self) -> dict[str, Sequence[str]]:
        return dict(self.users)

    def order_move(self, user: str, broker: str, url: str) -> bool:
        self.told.append((user, broker, url))
        wanted = self.users.pop(user, None)
        if wanted is not None:
            self._all[broker].users[user] = wanted
        return wanted is not None

    async def rates(self) -> dict[str, float]:
        if self.broker == "b2":
            raise ConnectFailed("no data cluster")  # reports go on without its rates
        return {"k1": 1000.0}


def test_reports_questions_and_moves_over_the_bus() -> None:
    async def scenario() -> None:
        async with await LocalCluster.start(2, controller_options=[*BALANCE, "--balance-every", "2"]) as cluster:
            gateways: dict[str, PlayedGateway] = {}
            links: dict[str, BusCoordination] = {}
            for broker, longitude in (("b1", 16.4), ("b2", -117.8)):
                gateways[broker] = PlayedGateway(broker, gateways)
                links[broker] = BusCoordination(cluster.store_url, Whereabouts(latitude=40.0, longitude=longitude))
                await links[broker].start(gateways[broker])
            try:
                await _ask_for_users(links)
                await _balance(cluster, gateways)
                await _survive_a_new_controller(cluster, links)
            finally:
                for link in links.values():
                    await link.stop()

    asyncio.run(scenario())


async def _ask_for_users(links: dict[str, BusCoordination]) -> None:
    async def knows_both() -> bool:
        return (await links["b1"].request("ada", 40.0, -110.0))[0] == "b2"

    await until(knows_both)
    assert await links["b2"].request("ben", 40.0, 10.0) == ("b1", "http://b1.example.com")
    assert await links["b1"].request("cyd", 40.0, 10.0, home="b2") == ("b2", "http://b2.example.com")
    await links["b1"].register("ada")
    with pytest.raises(Refused, match="user name"):
        await links["b1"].register("ada lovelace")


async def _balance(cluster: LocalCluster, gateways: dict[str, PlayedGateway]) -> None:
    """Eight equal subscribers on one of two gateways: half of them go."""
    gateways["b1"].users = {f"u{number}": ["k1"] for number in range(8)}

    async def even() -> bool:
        return len(gateways["b2"].users) == 4

    await until(even)
    assert {(broker, url) for _, broker, url in gateways["b1"].told} == {("b2", "http://b2.example.com")}
    console = await cluster.console()

    async def shown() -> bool:
        state = await console.subscribers("u0")
        return [state.gateways[name].subscribers for name in ("b1", "b2")] == [4, 4] and not state.moving

    await until(shown)
    decisions = (await console.state()).decisions
    assert any("multistage ldm: subscribers move, 4 from b1 to b2" in decision.text for decision in decisions)
    moved = next(iter(gateways["b2"].users))
    state = await console.move_subscriber(moved, "b1", timeout_s=WAIT_S)
    assert state.assignments == {moved: "b1"}


async def _survive_a_new_controller(cluster: LocalCluster, links: dict[str, BusCoordination]) -> None:
    """Nothing is written down: the next leader has it from the reports."""
    await cluster.kill_controller(0)
    await cluster.restart_controller(0)
    console = await cluster.console()

    async def all_shown() -> bool:
        state: bus.State = await console.subscribers(timeout_s=WAIT_S)
        return sum(view.subscribers for view in state.gateways.values()) == 8

    await until(all_shown, "all are shown again", WAIT_S)
    assert (await links["b1"].request("u7"))[0] in ("b1", "b2")


def test_a_position_is_whole_and_on_earth() -> None:
    with pytest.raises(UsageError, match="both"):
        Whereabouts(latitude=1.0)
    with pytest.raises(UsageError, match="-90 to 90"):
        Whereabouts(latitude=91.0, longitude=0.0)
