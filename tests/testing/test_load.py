"""A crowd that comes and goes is owed everything while it is there, and nothing afterwards."""

from __future__ import annotations

import asyncio
import time

import pytest

from nearcast.errors import UsageError
from nearcast.testing import load as load_module
from nearcast.testing.audit import Verdict
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.load import Crowd, Load, LoadShape
from nearcast.testing.waiting import until

pytestmark = pytest.mark.live

SHAPE = LoadShape(publishers=2, subscribers=1, rate_per_s=200, names=("scores",))


def visit(*, missing: bool) -> tuple[Verdict, Verdict, int]:
    """The verdicts of a crowd of three and of those who stay; `missing`: one message never comes."""

    async def scenario() -> tuple[Verdict, Verdict, int]:
        async with await LocalCluster.start(1) as cluster, Crowd() as crowd:
            load = Load(cluster.urls.values(), SHAPE)
            crowd.listen_to(load)
            async with load:
                load.begin()
                await until(lambda: load.acknowledged > 50, "a load before it comes")
                await crowd.come(cluster.urls.values(), 3)
                with pytest.raises(UsageError, match="already come"):
                    await crowd.come(cluster.urls.values(), 3)
                await until(lambda: crowd.load is not None and crowd.load.delivered >= 3 * 50, "it hears")
                if missing:
                    load.audit.acknowledged(7, "scores", load.audit.published(7, "scores", time.time()), time.time())
                assert crowd.present == 3
                gone = await crowd.leave()
                assert (crowd.present, crowd.verdict(), await crowd.leave()) == (0, gone, gone)
                after = load.acknowledged
                await until(lambda: load.acknowledged > after + 50, "a load after it has left")
                stayed = load.audit.verdict() if missing else await load.end()  # which would wait for it
                return gone, stayed, crowd.load.delivered if crowd.load else 0

    return asyncio.run(scenario())


def test_a_crowd_gets_everything_while_it_is_there() -> None:
    gone, stayed, delivered = visit(missing=False)
    assert gone.exact, gone
    assert stayed.exact, stayed
    assert delivered >= 3 * 50  # of about 100 messages each
    assert delivered < 3 * stayed.published / 2  # it was there for a part of the time


def test_what_never_comes_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "LEAVE_S", 0.3)
    gone, stayed, _ = visit(missing=True)
    assert gone.lost_prefix == 3  # of that publisher each of them got nothing
    assert not gone.exact
    assert stayed.lost_prefix == 1
