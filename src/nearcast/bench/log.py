"""Publishing to a topic that a log covers, compared with publishing to one that no log covers, and with redis-py.

Publisher and subscriber share one process, as in `client.py`, and all sides are measured in turn. redis-py does the
same in transactions: 100 messages in one MULTI ... EXEC, each an XADD and a PUBLISH.

`server_ratio` is the server's own share: the processor time it takes per message without a log, over that with one.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from statistics import median

import msgspec

from nearcast.bench.log_quorum import QuorumBench, measure_quorum
from nearcast.bench.log_reading import (
    MOVES,
    READ_MESSAGES,
    Pauses,
    Reading,
    measure_pauses,
    measure_reading,
)
from nearcast.bench.peers import (
    PAYLOAD,
    PIPELINE,
    REDIS_PY_TOPIC,
    Burst,
    Limit,
    OwnPeer,
    Receiver,
    RedisPyPeer,
    Send,
    rate_of,
)
from nearcast.core.model.logs import Log
from nearcast.core.model.placement import Mode
from nearcast.core.wire.replication import lines_of
from nearcast.errors import ClusterError
from nearcast.runtime.requester import Requester
from nearcast.testing.cluster import LocalCluster

ROUNDS = 7
READ_ROUNDS = 3
QUORUM_ROUNDS = 5
TOPICS = 50
WARM_UP = Limit(seconds=0.2)
STREAM_MAX = 100_000  # redis-py's stream, so that the server's memory stays flat
KEPT = Log("bench", 0, ("kept.*",), 3600.0, 1 << 40)

Progress = Callable[[str], None]


class LogBench(msgspec.Struct, frozen=True):
    """The figures of one run. Rates are messages per second, each published and received."""

    publish_per_s: float
    log_publish_per_s: float
    ratio: float
    publish_50_topics_per_s: float
    log_publish_50_topics_per_s: float
    ratio_50_topics: float
    server_ratio: float
    redis_py_transaction_per_s: float
    ratio_vs_redis_py: float
    read_per_s: float
    redis_py_read_per_s: float
    ratio_read: float
    quorum_per_s: float  # with one replica, as the next two
    log_publish_with_replica_per_s: float
    publish_with_replica_per_s: float
    ratio_quorum: float
    move_pause_p50_ms: float
    move_pause_p99_ms: float


async def measure_log(
    limit: Limit,
    *,
    rounds: int = ROUNDS,
    moves: int = MOVES,
    messages: int = READ_MESSAGES,
    progress: Progress = lambda _: None,
) -> LogBench:
    """Run everything; takes about `rounds * 5 * limit.seconds` and half a minute more."""
    progress("starting a cluster with two brokers")
    async with await LocalCluster.start(brokers=2) as cluster, await cluster.console() as console:
        await console.create_log(KEPT)
        topics = [f"{kind}.{number}" for kind in ("plain", "kept") for number in (*range(TOPICS + 1), "read")]
        await console.move_all(dict.fromkeys(topics, (Mode.SINGLE, ("b1",))))
        rates, costs = await _publishing(cluster.urls["b1"], limit, rounds, progress)
        reading = await measure_reading(cluster.urls["b1"], KEPT.name, min(rounds, READ_ROUNDS), messages, progress)
        pauses = await measure_pauses(cluster, moves, progress)
    quorum = await measure_quorum(limit, min(rounds, QUORUM_ROUNDS), progress)
    return _result(rates, costs, reading, pauses, quorum)


async def _publishing(
    url: str, limit: Limit, rounds: int, progress: Progress
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Messages per second of each way to publish, and the server's processor time for one message."""
    async with AsyncExitStack() as stack:
        server = Requester(url)
        stack.push_async_callback(server.close)
        ways = await _ways(url, stack)
        rates: dict[str, list[float]] = {name: [] for name in ways}
        costs: dict[str, list[float]] = {name: [] for name in ways}
        for receiver, send in ways.values():
            await rate_of(receiver, send, Limit(min(limit.seconds, WARM_UP.seconds), limit.messages))
        for number in range(1, rounds + 1):
            for name, (receiver, send) in ways.items():
                progress(f"round {number} of {rounds}: {name}")
                before, received = await _processor_s(server), receiver.received
                rates[name].append(await rate_of(receiver, send, limit))
                costs[name].append((await _processor_s(server) - before) / (receiver.received - received))
                await _empty(server)
    return {name: median(found) for name, found in rates.items()}, costs


async def _ways(url: str, stack: AsyncExitStack) -> dict[str, tuple[Receiver, Send]]:
    redis_py = await RedisPyPeer.open(url)
    stack.push_async_callback(redis_py.close)
    ways: dict[str, tuple[Receiver, Send]] = {"redis_py": (redis_py, _by_transactions(redis_py))}
    for name, topics in {
        "plain": ("plain.0",),
        "kept": ("kept.0",),
        "plain_50": tuple(f"plain.{number}" for number in range(1, TOPICS + 1)),
        "kept_50": tuple(f"kept.{number}" for number in range(1, TOPICS + 1)),
    }.items():
        peer = await OwnPeer.open(url, *topics)
        stack.push_async_callback(peer.close)
        ways[name] = (peer, peer.send_in_turn if len(topics) > 1 else peer.send_nowait)
    return ways


def _by_transactions(peer: RedisPyPeer) -> Send:
    async def send(burst: Burst) -> None:
        while count := burst.take(PIPELINE):
            transaction = peer.client.pipeline(transaction=True)
            for _ in range(count):
                transaction.xadd("bench-stream", {"payload": PAYLOAD}, maxlen=STREAM_MAX, approximate=True)
                transaction.publish(REDIS_PY_TOPIC, PAYLOAD)
            await transaction.execute()
            await burst.room()

    return send


async def _processor_s(server: Requester) -> float:
    """The processor time that the server has used."""
    found = lines_of(await server.ask("INFO", "cpu"))
    return float(found["used_cpu_user"]) + float(found["used_cpu_sys"])


async def _empty(server: Requester) -> None:
    """Without this, memory would grow with every round: retention is meant for longer times."""
    keys = await server.ask("KEYS", "nc:l:*")
    if not isinstance(keys, list):
        raise ClusterError(f"the server refused: {keys}")
    for key in keys:
        await server.ask("XTRIM", key, "MAXLEN", 0)


def _result(
    rates: dict[str, float], costs: dict[str, list[float]], reading: Reading, pauses: Pauses, quorum: QuorumBench
) -> LogBench:
    return LogBench(
        publish_per_s=rates["plain"],
        log_publish_per_s=rates["kept"],
        ratio=rates["kept"] / rates["plain"],
        publish_50_topics_per_s=rates["plain_50"],
        log_publish_50_topics_per_s=rates["kept_50"],
        ratio_50_topics=rates["kept_50"] / rates["plain_50"],
        server_ratio=median(costs["plain"]) / median(costs["kept"]),
        redis_py_transaction_per_s=rates["redis_py"],
        ratio_vs_redis_py=rates["kept"] / rates["redis_py"],
        read_per_s=reading.read_per_s,
        redis_py_read_per_s=reading.redis_py_read_per_s,
        ratio_read=reading.read_per_s / reading.redis_py_read_per_s,
        quorum_per_s=quorum.quorum_per_s,
        log_publish_with_replica_per_s=quorum.log_publish_per_s,
        publish_with_replica_per_s=quorum.publish_per_s,
        ratio_quorum=quorum.quorum_per_s / quorum.log_publish_per_s,
        move_pause_p50_ms=pauses.p50_ms,
        move_pause_p99_ms=pauses.p99_ms,
    )
