"""The streams of all brokers of a cluster, by their brokers' names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from nearcast.core.model.journal import MEMBERSHIP_KEY
from nearcast.core.model.membership import BrokerInfo, Membership, encode_membership
from nearcast.core.model.names import ENTRIES_KEY
from nearcast.errors import ClusterError
from nearcast.pipeline.sources.cluster_streams import ClusterStreams
from nearcast.pipeline.sources.server import RespConnection
from nearcast.testing.waiting import wait_until

if TYPE_CHECKING:
    from conftest import Brokers

pytestmark = pytest.mark.live

NOBODY = "redis://127.0.0.1:1"


def test_agents_report_to_their_own_servers(brokers: Brokers) -> None:
    names = ["b1/nc:reports", "b2/nc:reports"]

    def all_report() -> bool:
        with ClusterStreams(brokers.store_url) as streams:
            assert streams.names(["nc:reports"]) == names
            return all(view is not None and view.added > 1 for view in streams.views(names).values())

    wait_until(all_report)
    with ClusterStreams(brokers.store_url) as streams:
        for name in names:
            last, count = streams.step(name, "0-0", 2)
            (page,) = streams.pages(name, "0-0", last)
            fields = dict(zip(page[0][1][::2], page[0][1][1::2], strict=True))
            assert (count, fields[b"broker"].decode()) == (2, name[:2])
    with RespConnection(brokers.store_url) as store:
        assert store.ask("EXISTS", "nc:reports") == 0


def test_a_server_that_does_not_answer_has_nothing_for_now(valkey: RespConnection, server_url: str) -> None:
    membership = Membership(1, 1, {"b1": BrokerInfo(server_url), "b2": BrokerInfo(NOBODY)})
    valkey.ask("HSET", ENTRIES_KEY, MEMBERSHIP_KEY, encode_membership(membership))
    valkey.ask("XADD", "s", "5-0", "a", "b")
    with ClusterStreams(server_url) as streams:
        assert streams.names(["s", "t"]) == ["b1/s", "b1/t"]
        views = streams.views(["b1/s", "b1/t", "b2/s"])
        assert views["b1/s"] is not None
        assert (views["b1/t"], views["b2/s"]) == (None, None)
        with pytest.raises(ClusterError, match="the server of b2, which has b2/s, does not answer"):
            streams.step("b2/s", "0-0", 1)


def test_a_store_without_a_cluster_has_no_brokers(valkey: RespConnection, server_url: str) -> None:
    with ClusterStreams(server_url) as streams:
        assert streams.names(["s"]) == []
