"""What the source of logs plans when the membership changes: nothing is read twice, and what is lost is told once."""

from __future__ import annotations

import msgspec
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from nearcast.core.model.journal import MEMBERSHIP_KEY
from nearcast.core.model.logs import FormerLife, Log, PartState
from nearcast.core.model.membership import BrokerInfo, Membership, encode_membership
from nearcast.core.model.names import ENTRIES_KEY
from nearcast.errors import ClusterError
from nearcast.pipeline.sources.logs import LogsReader, Options
from nearcast.pipeline.sources.positions import LOST, PartRange
from nearcast.pipeline.sources.server import RespConnection

pytestmark = pytest.mark.live

LOG = Log("orders", 5, ("order.*",), 3600.0, 1 << 30)
STREAM = "nc:l:orders@5:b1@1"


class World:
    """One broker, on the store's server."""

    def __init__(self, valkey: RespConnection, url: str) -> None:
        self._valkey = valkey
        self.url = url
        self.membership = Membership(9, 1, {"b1": BrokerInfo(url, began=1)}, logs=(LOG,))
        self.install()
        self.reader = LogsReader(Options(url=url, logs=frozenset([LOG.key]), starting={STREAM: 2}))

    def install(self, **changes: object) -> None:
        document = encode_membership(msgspec.structs.replace(self.membership, **changes))
        self._valkey.ask("HSET", ENTRIES_KEY, MEMBERSHIP_KEY, document)

    def kept(self, messages: int) -> None:
        self._valkey.ask("HSET", "nc:t:b1@1", STREAM, messages)

    def latest(self, start: dict[str, int]) -> dict[str, int]:
        return self.reader.latestOffset(start, ReadAllAvailable())

    def planned(self, start: dict[str, int], end: dict[str, int]) -> list[tuple[PartRange, str]]:
        return [each for partition in self.reader.partitions(start, end) for each in partition.value]


@pytest.fixture
def world(valkey: RespConnection, server_url: str) -> World:
    made = World(valkey, server_url)
    made.kept(7)
    return made


def test_a_part_that_the_checkpoint_does_not_know_begins_where_the_catalogue_says(world: World) -> None:
    assert world.latest({}) == {STREAM: 7}
    assert world.planned({}, {STREAM: 7}) == [(PartRange(STREAM, 2, 7), world.url)]
    assert world.planned({STREAM: 4}, {STREAM: 7}) == [(PartRange(STREAM, 4, 7), world.url)]


def test_a_journal_without_logs_makes_nothing_be_read_again(world: World) -> None:
    """A store that lost its data has none until it is rebuilt."""
    start = world.latest({})
    world.install(logs=())
    assert world.latest(start) == start
    world.install()
    assert world.latest(start) == start


def test_a_life_that_was_lost_is_told_once_and_forgotten_with_it(world: World) -> None:
    start = world.latest({})
    world.install(brokers={}, former=(FormerLife("b1@1", 9),))
    lost = world.latest(start)
    assert lost == {STREAM: LOST}
    assert world.planned(start, lost) == [(PartRange(STREAM, 7, LOST), "")]
    assert world.latest(lost) == lost
    world.install(brokers={})
    assert world.latest(lost) == {}


def test_of_a_life_that_ended_in_good_order_exactly_what_was_not_read_is_lost(world: World) -> None:
    world.install(brokers={}, former=(FormerLife("b1@1", 9, counts={LOG.key: 7}),))
    assert world.latest({STREAM: 7}) == {STREAM: 7}
    assert world.latest({STREAM: 4}) == {STREAM: 7}
    assert world.planned({STREAM: 4}, {STREAM: 7}) == [(PartRange(STREAM, 4, 7), "")]


def test_a_life_before_the_log_has_kept_nothing_of_it(world: World) -> None:
    world.install(brokers={}, former=(FormerLife("b1@1", 5),))
    assert world.latest({}) == {}


def test_a_part_that_is_being_sealed_waits_and_then_is_read_where_it_is_held(world: World) -> None:
    start = {STREAM: 4}
    world.install(brokers={}, former=(FormerLife("b1@1", 9, PartState.SEALING),))
    assert world.latest(start) == start
    with pytest.raises(ClusterError, match="b1@1 has ended, and its replicas are being sealed"):
        world.planned(start, {STREAM: 7})
    world.install(brokers={}, former=(FormerLife("b1@1", 9, PartState.HELD, world.url),))
    assert world.latest(start) == {STREAM: 7}
    assert world.planned(start, {STREAM: 7}) == [(PartRange(STREAM, 4, 7), world.url)]


def test_a_server_that_does_not_answer_is_read_later(world: World) -> None:
    start = world.latest({})
    world.kept(9)
    world.install(brokers={"b1": BrokerInfo("redis://127.0.0.1:1", began=1)})
    assert world.latest(start) == start
    world.install()
    assert world.latest(start) == {STREAM: 9}
