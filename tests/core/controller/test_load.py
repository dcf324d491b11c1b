"""The load window: means over the last seconds, whatever the length of a report, and topics put together."""

from __future__ import annotations

import pytest

from nearcast.core.controller.planning_input import WINDOW_S, LoadWindow, output_bytes_per_s, topic_loads
from nearcast.core.model.counters import TopicCounters
from nearcast.core.model.planning import TopicLoad
from nearcast.core.model.reports import Report
from nearcast.core.wire.frames import PUSH_BYTES


def report(broker: str, seconds: float, output_bytes_per_s: float, **topics: TopicCounters) -> Report:
    return Report(broker, 0.0, seconds, output_bytes_per_s, 0.0, 1, 1, 0.1, 0.0, topics)


def topics(book: LoadWindow, *brokers: str) -> tuple[dict[str, TopicLoad], dict[str, str]]:
    return topic_loads({broker: book.window(broker) for broker in brokers})


def test_output_is_a_mean_weighted_by_time() -> None:
    book = LoadWindow()
    book.add(report("b1", 1.0, 100.0), 1.0)
    book.add(report("b1", 3.0, 500.0), 4.0)
    assert output_bytes_per_s(book.window("b1")) == 400.0
    assert output_bytes_per_s(book.window("b2")) == 0.0


def test_old_reports_do_not_count() -> None:
    book = LoadWindow()
    book.add(report("b1", 1.0, 100.0, t=TopicCounters(received=1)), 1.0)
    book.add(report("b1", 1.0, 300.0), 1.1 + WINDOW_S)
    assert output_bytes_per_s(book.window("b1")) == 300.0
    assert topics(book, "b1") == ({}, {})


def test_a_topic_is_the_sum_over_its_brokers() -> None:
    book = LoadWindow()
    counters = TopicCounters(
        published=10, published_bytes=1000, received=40, received_bytes=4000, publishers=2, subscribers=8
    )
    less = TopicCounters(received=20, received_bytes=2000, subscribers=4)
    for second in (1.0, 2.0):
        book.add(report("b1", 1.0, 0.0, t=counters), second)
        book.add(report("b2", 1.0, 0.0, t=less), second)
    loads, busiest = topics(book, "b1", "b2")
    load = loads["t"]
    assert (load.publishers, load.publications_per_s, load.subscribers, load.deliveries_per_s) == (2, 10, 12, 60)
    assert load.input_bytes_per_s == 1000
    assert load.output_bytes_per_s == pytest.approx(6000 + 60 * PUSH_BYTES)
    assert busiest == {"t": "b1"}
    assert book.mentions("b2", "t")
    assert not book.mentions("b2", "u")
    assert topics(book, "b2")[0]["t"].subscribers == 4


def test_a_quiet_second_counts_as_one() -> None:
    book = LoadWindow()
    book.add(report("b1", 1.0, 0.0, t=TopicCounters(published=10)), 1.0)
    book.add(report("b1", 1.0, 0.0), 2.0)
    assert topics(book, "b1")[0]["t"].publications_per_s == 5.0
