"""How far users are from their gateway: who is pinged when, and what counts as an answer."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

import pytest
from gateway_world import Worlds
from websockets.asyncio.client import ClientConnection, connect
from websockets.frames import Frame, Opcode

from nearcast.gateway import distances as module
from nearcast.gateway.distances import (
    AGAIN_S,
    EVERY_S,
    PINGS_PER_S,
    PUBLISHED_S,
    TICK_S,
    Answered,
    Pings,
    Publishers,
    farthest_s,
)
from nearcast.gateway.session import Session
from nearcast.gateway.settings import DEFAULT_SETTINGS
from nearcast.subscriber.client import Subscriber
from nearcast.testing.waiting import until

COST_S = 0.5  # of a quarter of an hour with 10,000 idle sessions, several times what it takes


def session(*topics: str, round_trip_s: float | None = None) -> Session:
    made = Session(DEFAULT_SETTINGS, "", lambda: None)
    made.topics.update(topics)
    if round_trip_s is not None:
        made.distance.sample(round_trip_s, 0.0)
    return made


class Clock:
    """Runs the pings of a gateway, and answers them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.pings = Pings(random.Random(1))
        self.sent: list[tuple[float, Session]] = []
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now_s)

    def add(self, one: Session, answer_s: Callable[[], float | None]) -> None:
        def ping(answered: Answered) -> None:
            self.sent.append((self.now_s, one))
            round_trip_s = answer_s()
            if round_trip_s is not None:
                answered(round_trip_s)

        self.pings.add(one, ping, self.now_s)

    def run(self, seconds: float) -> int:
        """How many pings were sent."""
        before = len(self.sent)
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            self.pings.tick(self.now_s)
        return len(self.sent) - before


def test_who_uses_topics_is_pinged_until_its_distance_is_clear_and_then_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    there, idle, silent = session("t"), session(), session("t")
    clock.add(there, lambda: 0.08)
    clock.add(idle, lambda: 0.01)
    clock.add(silent, lambda: None)
    clock.run(4 * AGAIN_S)
    assert there.distance.round_trip_s == 0.08
    pinged = [one for _, one in clock.sent]
    assert (pinged.count(there), pinged.count(idle), pinged.count(silent)) == (3, 0, 1)
    assert 10 <= clock.run(6 * EVERY_S) <= 14
    idle.published_s = clock.now_s
    clock.run(1.1 * EVERY_S + 2 * AGAIN_S)
    assert idle.distance.round_trip_s == 0.01
    for one in (there, idle, silent):
        clock.pings.remove(one)
    assert clock.run(3 * EVERY_S) == 0
    assert clock.pings._queue == []


def test_a_user_who_has_moved_is_measured_anew_soon_and_one_late_answer_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    phone, answers = session("t"), [0.02]
    clock.add(phone, lambda: answers.pop() if len(answers) > 1 else answers[0])
    clock.run(3 * EVERY_S)
    answers += [0.4]
    clock.run(2 * EVERY_S)
    assert phone.distance.round_trip_s == 0.02
    answers[:] = [0.09]
    clock.run(1.1 * EVERY_S + 3 * AGAIN_S)
    assert phone.distance.round_trip_s == 0.09


@pytest.mark.parametrize("lie", [0.0, -1.0, 11.0, float("nan")])
def test_what_is_no_round_trip_is_not_taken(monkeypatch: pytest.MonkeyPatch, lie: float) -> None:
    clock = Clock(monkeypatch)
    liar = session("t")
    clock.add(liar, lambda: lie)
    clock.run(EVERY_S)
    assert liar.distance.round_trip_s is None


def test_pings_of_many_sessions_are_spread_and_idle_ones_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    busy = [session("t") for _ in range(2000)]
    for one in busy:
        clock.add(one, lambda: 0.02)
    assert clock.run(10.0) <= 10.0 * PINGS_PER_S + 1
    most = max(sum(begin <= sent_s < begin + 0.95 for sent_s, _ in clock.sent) for begin in range(10))
    assert most <= 1.1 * PINGS_PER_S
    clock.run(30.0)
    assert all(one.distance.round_trip_s == 0.02 for one in busy)

    idle = Clock(monkeypatch)
    for _ in range(10_000):
        idle.add(session(), lambda: 0.02)
    begun_s = time.process_time()
    assert idle.run(10.0) == 0
    assert time.process_time() - begun_s < COST_S


def test_publishers_count_for_a_while_and_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    near, far = session(round_trip_s=0.02), session(round_trip_s=0.0912345)
    publishers = Publishers()
    publishers.published(near, "t", 0.0)
    publishers.published(far, "t", 1.0)
    publishers.published(near, "t", 5.0)
    publishers.published(near, "u", 5.0)
    assert farthest_s(publishers.of("t", PUBLISHED_S + 1.0)) == 0.09123
    assert set(publishers.of("t", PUBLISHED_S + 1.1)) == {near}
    assert farthest_s(publishers.of("t", PUBLISHED_S + 5.1)) == 0.0
    assert (publishers._said, publishers._topics) == ({}, {})
    monkeypatch.setattr(module, "PUBLISHERS_MAX", 10)
    for number in range(100):
        publishers.published(near, f"t{number}", 20.0)
    assert len(publishers._said) == len(publishers._topics) == 10
    assert farthest_s([]) == farthest_s([session()]) == 0.0


# --- over real connections


async def open_socket(url: str, user: str) -> ClientConnection:
    async with Subscriber.connect(url, user, tokens=None) as subscriber:
        token = subscriber.token
    socket = await connect("ws" + url.removeprefix("http") + "/ws", proxy=None)
    await socket.send(f'{{"type":"login","user":"{user}","token":"{token}"}}')
    assert '"welcome"' in str(await socket.recv())
    return socket


@pytest.mark.live
def test_a_pong_counts_once_and_only_for_the_newest_ping(world: Worlds) -> None:
    async def scenario() -> None:
        async with world() as w:
            url = await w.start_gateway()
            gateway = w.gateways["b1"]
            socket = await open_socket(url, "ann")
            ann = gateway.session_of("ann")
            assert ann is not None
            ping = gateway.pings._pinged[ann].ping
            pings: list[bytes] = []  # what the gateway sent
            answer = socket.protocol.recv_frame

            def hold_back(frame: Frame) -> None:
                if frame.opcode is Opcode.PING:
                    pings.append(bytes(frame.data))
                else:
                    answer(frame)

            socket.protocol.recv_frame = hold_back  # type: ignore[method-assign]
            found: list[float] = []
            for number in (1, 2, 3):
                ping(found.append)
                await until(lambda number=number: len(pings) == number)  # type: ignore[misc]
            assert len({*pings}) == 3
            assert all(len(payload) == 16 for payload in pings)
            for payload in (b"", b"x" * 16, pings[0], pings[1]):
                await socket.pong(payload)
            await socket.send('{"type":"ping"}')
            assert '"pong"' in str(await socket.recv())
            assert found == [], "none of those answers the newest ping"
            await socket.pong(pings[2])
            await socket.pong(pings[2])
            await socket.send('{"type":"ping"}')
            assert '"pong"' in str(await socket.recv())
            assert len(found) == 1
            assert 0.0 < found[0] < 10.0
            await socket.close()
            await until(lambda: not gateway.pings._pinged)

    asyncio.run(scenario())
