"""The source in real Spark queries over a real server: exact after restarts, within its limits, loud about losses."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import StreamingQueryException

from nearcast.pipeline.sources.server import RespConnection

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.live


def fill(valkey: RespConnection, stream: str, first: int, last: int) -> None:
    """Records with the ids first-0 ... last-0."""
    valkey.ask_all([("XADD", stream, f"{i}-0", "n", str(i)) for i in range(first, last + 1)])


class Follower:
    """A streaming query that can be stopped and started again from its checkpoint. Its batches are kept by number."""

    def __init__(self, spark: SparkSession, url: str, folder: Path, **options: object) -> None:
        self._spark = spark
        self._options = {"url": url} | {name: str(value) for name, value in options.items()}
        self._folder = folder
        self.batches: dict[int, list[str]] = {}
        self.fail_in: int | None = None

    def run(self) -> StreamingQuery:
        """Read what is there now, and end."""
        stream = self._spark.readStream.format("valkey_streams").options(**self._options).load()
        writer = stream.writeStream.foreachBatch(self._keep).option("checkpointLocation", str(self._folder))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def _keep(self, batch: DataFrame, number: int) -> None:
        rows = batch.select("stream", "id").collect()
        self.batches[number] = sorted(f"{row.stream}:{row.id}" for row in rows)
        if number == self.fail_in:
            raise RuntimeError("killed before the batch was committed")

    def take(self) -> list[list[str]]:
        taken, self.batches = [self.batches[number] for number in sorted(self.batches)], {}
        return taken


def ids(stream: str, first: int, last: int) -> list[str]:
    return sorted(f"{stream}:{i}-0" for i in range(first, last + 1))


def end_offset(query: StreamingQuery) -> dict[str, Any]:
    end: dict[str, Any] = json.loads(query.recentProgress[-1].sources[0].endOffset)
    return end


def read(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.read.format("valkey_streams").options(url=url, **options).load()


def test_a_batch_has_every_record_with_one_partition_per_stream(
    spark: SparkSession, server_url: str, valkey: RespConnection
) -> None:
    noon = 1_700_000_000_000
    valkey.ask("XADD", "a", f"{noon}-7", "topic", "t", "payload", b"\x00\xff", b"\xfe", "odd name")
    fill(valkey, "b", 1, 2500)
    found = read(spark, server_url, streams="a,b,none")
    assert found.rdd.getNumPartitions() == 2
    assert found.where("stream = 'b'").agg({"id": "count"}).first()[0] == 2500
    (row,) = found.where("stream = 'a'").selectExpr("*", "unix_millis(at) AS ms").collect()
    assert (row.id, row.ms) == (f"{noon}-7", noon)
    assert row.fields == {"topic": b"t", "payload": b"\x00\xff", "\\xfe": b"odd name"}


def test_a_batch_begins_where_it_is_told(spark: SparkSession, server_url: str, valkey: RespConnection) -> None:
    fill(valkey, "a", 1, 9)
    fill(valkey, "b", 1, 2)
    valkey.ask("XADD", "b", f"{2**63}-0", "n", "after the last timestamp")
    found = read(spark, server_url, streams="a,b", startingOffsets='{"a": "7-0"}').collect()
    assert [(row.stream, row.id) for row in found] == [
        *(("a", "8-0"), ("a", "9-0"), ("b", "1-0"), ("b", "2-0"), ("b", f"{2**63}-0")),
    ]
    assert found[0].at.astimezone(dt.UTC) == dt.datetime(1970, 1, 1, 0, 0, 0, 8000, tzinfo=dt.UTC)
    assert found[-1].at is None
    assert read(spark, server_url, streams="a,b", startingOffsets="latest").count() == 0


def test_a_wrong_option_fails_the_query_with_its_name(spark: SparkSession, server_url: str) -> None:
    with pytest.raises(Exception, match="failOnDataLoss is 'perhaps': give true or false"):
        read(spark, server_url, streams="a", failOnDataLoss="perhaps").count()


@pytest.mark.cluster
def test_a_query_goes_on_exactly_after_restarts_and_runs_a_broken_batch_again(
    spark: SparkSession, server_url: str, valkey: RespConnection, tmp_path: Path
) -> None:
    follower = Follower(spark, server_url, tmp_path, streams="a,b", maxRecordsPerBatch=10)
    fill(valkey, "a", 1, 4)
    fill(valkey, "b", 1, 14)
    follower.run()
    # The shorter stream whole, the longer one in what is left of the limit.
    assert follower.take() == [ids("a", 1, 4) + ids("b", 1, 6), ids("b", 7, 14)]

    fill(valkey, "a", 5, 12)
    follower.fail_in = 2
    with pytest.raises(StreamingQueryException, match="killed before"):
        follower.run()
    broken = follower.take()
    fill(valkey, "a", 13, 30)  # the batch was planned: what comes now belongs to the next one
    follower.fail_in = None
    follower.run()
    again = follower.take()
    assert again[0] == broken[0] == ids("a", 5, 12)
    assert again[1:] == [ids("a", 13, 22), ids("a", 23, 30)]


def test_a_query_begins_at_the_end_if_told_and_reads_new_streams_whole(
    spark: SparkSession, server_url: str, valkey: RespConnection, tmp_path: Path
) -> None:
    fill(valkey, "t.a", 1, 3)
    follower = Follower(spark, server_url, tmp_path, streams="t.*", startingOffsets="latest")
    follower.fail_in = 0
    with pytest.raises(StreamingQueryException, match="killed before"):
        follower.run()
    assert follower.take() == [[]]  # a batch without records, which says where the query begins
    follower.fail_in = None
    fill(valkey, "t.a", 4, 5)
    fill(valkey, "t.b", 1, 2)
    fill(valkey, "other", 1, 2)
    follower.run()
    assert follower.take() == [[], ids("t.a", 4, 5) + ids("t.b", 1, 2)]


def test_trimmed_records_stop_the_query_or_are_counted(
    spark: SparkSession, server_url: str, valkey: RespConnection, tmp_path: Path
) -> None:
    fill(valkey, "a", 1, 5)
    careful = Follower(spark, server_url, tmp_path, streams="a")
    easy = Follower(spark, server_url, tmp_path, streams="a", failOnDataLoss="false")
    careful.run()
    assert careful.take() == [ids("a", 1, 5)]
    fill(valkey, "a", 6, 20)
    valkey.ask("XTRIM", "a", "MAXLEN", 3)
    with pytest.raises(StreamingQueryException, match=r"12 records of stream 'a' after 5-0 and before 18-0"):
        careful.run()
    assert careful.take() == []
    query = easy.run()
    assert easy.take() == [ids("a", 18, 20)]
    (read_to,) = end_offset(query).values()
    assert (read_to["id"], read_to["position"], read_to["lost"]) == ("20-0", 20, 12)


def test_records_trimmed_after_a_batch_was_planned_stop_it(
    spark: SparkSession, server_url: str, valkey: RespConnection, tmp_path: Path
) -> None:
    fill(valkey, "a", 1, 5)
    follower = Follower(spark, server_url, tmp_path, streams="a")
    follower.fail_in = 0
    with pytest.raises(StreamingQueryException, match="killed before"):
        follower.run()
    follower.fail_in = None
    valkey.ask("XTRIM", "a", "MAXLEN", 2)
    with pytest.raises(StreamingQueryException, match=r"3 of 5 records of stream 'a' after 0-0 up to 5-0"):
        follower.run()
