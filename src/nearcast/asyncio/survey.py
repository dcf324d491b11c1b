"""A survey: ask every broker who is subscribed, and add the answers up to what one server would say.

What is exact and what is not:

    channels   topics with a subscriber somewhere. One that was just left or moved may be named half a second longer.
    numsub     by the topic's record. `single`: what its broker says. `all_subscribers`: every subscriber is on every
               broker of the topic, so the largest number. `all_publishers`: every subscriber is on one, so the sum.
               Subscribers of a plain Redis client are counted where they hear the topic, under `all_subscribers` only
               if they are on the broker with the most.
    numpat     every pattern subscriber is on every broker, so the largest number.

A broker that does not answer counts as empty; if none answers, the last error is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from nearcast.asyncio.options import Options
from nearcast.core.link import Reply, is_error
from nearcast.core.names import FIRST_USES, RECORDS, RESERVED
from nearcast.core.placement import Mode
from nearcast.core.record import Record
from nearcast.core.wire import read_record
from nearcast.errors import ClusterError, ProtocolError
from nearcast.runtime.client import Client
from nearcast.runtime.requester import Requester


class Survey:
    def __init__(self, client: Client, options: Options) -> None:
        self._client = client
        self._options = options
        self._requesters: dict[str, Requester] = {}  # by URL

    async def close(self) -> None:
        requesters, self._requesters = self._requesters, {}
        for requester in requesters.values():
            await requester.close()

    async def channels(self, pattern: bytes) -> list[bytes]:
        found: set[bytes] = set()
        for names in (await self._ask_all("PUBSUB", "CHANNELS", pattern)).values():
            assert isinstance(names, list)
            found.update(names)
        return sorted(name for name in found if not name.startswith(RESERVED))

    async def numsub(self, topics: list[bytes]) -> list[int]:
        if not topics:
            return []
        counted, used, recorded = await asyncio.gather(
            self._ask_all("PUBSUB", "NUMSUB", *topics),
            self._ask_all("HMGET", FIRST_USES, *topics),
            self._ask_all("HMGET", RECORDS, *topics),  # behind first uses: records take their place
        )
        return [
            0
            if topic.startswith(RESERVED)
            else _subscribers(_at(counted, 2 * index + 1), _at(used, index), _at(recorded, index))
            for index, topic in enumerate(topics)
        ]

    async def numpat(self) -> int:
        counts = [count for count in (await self._ask_all("PUBSUB", "NUMPAT")).values() if isinstance(count, int)]
        return max(counts)

    async def _ask_all(self, *parts: bytes | str) -> dict[str, Reply]:
        """The answers of the brokers that answer, by broker."""
        brokers = self._client.brokers
        replies = await asyncio.gather(
            *(self._ask(info.url, *parts) for info in brokers.values()), return_exceptions=True
        )
        answers: dict[str, Reply] = {}
        problem: BaseException | None = None
        for broker, reply in zip(brokers, replies, strict=True):
            if isinstance(reply, ClusterError):
                problem = reply
            elif isinstance(reply, BaseException):
                raise reply
            else:
                answers[broker] = reply
        if not answers:
            raise problem or ClusterError("the cluster has no broker: start `nearcast agent` beside a server")
        return answers

    async def _ask(self, url: str, *parts: bytes | str) -> Reply:
        requester = self._requesters.get(url)
        if requester is None:
            resolve = self._options.resolve
            requester = Requester(self._options.with_credentials(resolve(url) if resolve else url))
            self._requesters[url] = requester
        reply = await requester.ask(*parts)
        if is_error(reply):
            raise ProtocolError(f"{url}: {reply}: let this user run {parts[0]!s} and read the keys nc:r and nc:first")
        return reply


def _at(answers: Mapping[str, Reply], index: int) -> dict[str, Reply]:
    """One column of the brokers' answers."""
    return {broker: answer[index] for broker, answer in answers.items() if isinstance(answer, list)}


def _subscribers(counts: Mapping[str, Reply], first_uses: Mapping[str, Reply], records: Mapping[str, Reply]) -> int:
    numbers = {broker: count for broker, count in counts.items() if isinstance(count, int)}
    read = [read_record(record) for record in records.values() if isinstance(record, bytes)]
    known = [record for record in read if isinstance(record, Record)]
    if not known:
        used = [broker for broker, first in first_uses.items() if first is not None]  # mostly one: the directory
        return sum(numbers.get(broker, 0) for broker in used or numbers)  # else no client of ours has used the topic
    placement = max(known, key=lambda record: record.version).placement
    there = [numbers.get(broker, 0) for broker in placement.brokers]
    return sum(there) if placement.mode is Mode.ALL_PUBLISHERS else max(there)
