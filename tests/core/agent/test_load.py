"""The load meter: one report from the server's own figures and what clients counted."""

from __future__ import annotations

import msgspec
import pytest

from nearcast.core.agent import load
from nearcast.core.agent.load import LoadMeter
from nearcast.core.model.counters import ClientReport, TopicCounters
from nearcast.core.wire.backend import Figures
from nearcast.core.wire.frames import PUSH_BYTES


def info(output: int, inputs: int = 0, *, cpu_s: float = 0.0) -> Figures:
    return Figures(output_bytes=output, input_bytes=inputs, cpu_s=cpu_s, connections=3, memory_bytes=2048)


def told(client: int, **topics: TopicCounters) -> bytes:
    return msgspec.json.encode(ClientReport(client, 1.0, topics))


def test_the_first_measurement_has_nothing_to_compare_with() -> None:
    assert LoadMeter("b1").measure(info(1000), 10.0, 0.0) is None


def test_rates_are_differences_over_the_time_between() -> None:
    meter = LoadMeter("b1")
    meter.measure(info(1000, 500, cpu_s=3.0), 10.0, 0.0)
    report = meter.measure(info(5000, 1500, cpu_s=4.0), 12.0, 1000.0)
    assert report is not None
    assert (report.broker, report.at_s, report.seconds) == ("b1", 1012.0, 2.0)
    assert (report.output_bytes_per_s, report.input_bytes_per_s, report.cpu_share) == (2000.0, 500.0, 0.5)
    assert (report.connections, report.memory_bytes) == (3, 2048)


def test_a_restarted_server_has_no_negative_rates() -> None:
    meter = LoadMeter("b1")
    meter.measure(info(10**9, cpu_s=50.0), 10.0, 0.0)
    report = meter.measure(info(100), 11.0, 0.0)
    assert report is not None
    assert (report.output_bytes_per_s, report.cpu_share) == (0.0, 0.0)


def test_a_clock_that_stands_still_gives_no_report() -> None:
    meter = LoadMeter("b1")
    meter.measure(info(0), 10.0, 0.0)
    assert meter.measure(info(1), 10.0, 0.0) is None


def test_counters_of_all_clients_are_added_once() -> None:
    meter = LoadMeter("b1")
    meter.measure(info(0), 10.0, 0.0)
    meter.client_report(told(1, t=TopicCounters(published=5, publishers=1)))
    meter.client_report(told(2, t=TopicCounters(received=5, received_bytes=500, subscribers=1)))
    report = meter.measure(info(1000), 11.0, 0.0)
    assert report is not None
    assert report.topics == {
        "t": TopicCounters(published=5, received=5, received_bytes=500, publishers=1, subscribers=1)
    }
    assert report.counted_bytes_per_s == 500 + 5 * PUSH_BYTES
    after = meter.measure(info(1000), 12.0, 0.0)
    assert after is not None
    assert after.topics == {}


DEEP = b'{"client":1,"seconds":1,"topics":{},"x":' + b"[" * 1500 + b"]" * 1500 + b"}"


@pytest.mark.parametrize("payload", [b"", b"hello", b"{}", b'{"client": 1, "seconds": 1, "topics": {"t": 5}}', DEEP])
def test_what_is_no_report_is_dropped_and_counted(payload: bytes) -> None:
    meter = LoadMeter("b1")
    meter.client_report(payload)
    assert meter.dropped == 1


@pytest.mark.parametrize(
    ("topic", "counters"),
    [
        ("t", TopicCounters(received=10**400)),
        ("t", TopicCounters(received_bytes=1 << 41)),
        ("t", TopicCounters(published=-1)),
        ("t", TopicCounters(latencies={10**9: 1})),
        ("t", TopicCounters(latencies={-1: 1})),
        ("t", TopicCounters(latencies={1: -1})),
        ("t" * 513, TopicCounters(published=1)),
        ("nc:c:t", TopicCounters(published=1)),
    ],
)
def test_what_no_client_can_have_counted_is_dropped_and_the_rest_is_reported(
    topic: str, counters: TopicCounters
) -> None:
    meter = LoadMeter("b1")
    meter.measure(info(0), 1.0, 0.0)
    meter.client_report(told(1, **{topic: counters, "honest": TopicCounters(published=1)}))
    report = meter.measure(info(0), 2.0, 0.0)
    assert report is not None
    assert report.topics == {"honest": TopicCounters(published=1)}
    assert meter.dropped == 1


def test_topics_beyond_the_limit_are_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "TOPICS_MAX", 2)
    meter = LoadMeter("b1")
    meter.measure(info(0), 1.0, 0.0)
    one = TopicCounters(published=1)
    meter.client_report(told(1, a=one, b=one, c=one))
    meter.client_report(told(2, a=one))
    report = meter.measure(info(0), 2.0, 0.0)
    assert report is not None
    assert {topic: counters.published for topic, counters in report.topics.items()} == {"a": 2, "b": 1}
    assert meter.dropped == 1
