"""The scheduler's threads, without Spark: how many run at once, what is tried again, and how it stops."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import Counter

import msgspec
import pytest

from nearcast.pipeline.catalog.channels import described
from nearcast.pipeline.catalog.executions import Size
from nearcast.pipeline.channels.execution import prepare
from nearcast.pipeline.channels.language import parse_channel
from nearcast.pipeline.service.scheduler import Scheduler
from nearcast.testing.waiting import wait_until

TEXT = "CREATE CHANNEL {}(kind STRING) PERIOD 1 SECONDS CONTINUOUS AS SELECT id FROM NEW reports WHERE kind = :kind"
NAMES = ("one", "two", "three")
WAIT_S = 30.0


class Runner:
    """Stands for Spark: takes a while, notes who runs beside whom, and fails when it is told to."""

    def __init__(self, cluster) -> None:
        self.cluster = cluster
        self.running: Counter[str] = Counter()
        self.most = 0
        self.most_of_one = 0
        self.failures = 0
        self.takes_s = 0.02
        self._lock = threading.Lock()

    def __call__(self, channel, execution) -> None:
        with self._lock:
            self.running[channel.name] += 1
            self.most_of_one = max(self.most_of_one, self.running[channel.name])
            self.most = max(self.most, self.running.total())
        time.sleep(self.takes_s)  # the while
        with self._lock:
            self.running[channel.name] -= 1
            if self.failures:
                self.failures -= 1
                raise RuntimeError("out of luck\nat line 1")
        self.cluster.catalog.executions.commit(execution, {f"{channel.name}-x": Size(1, 1)})


def create(cluster, text: str) -> None:
    prepared = prepare(parse_channel(text), {"reports": cluster.catalog.datasets.schema("reports")})
    channel = msgspec.structs.replace(described(prepared), period_s=0.05)  # shorter than people may write
    cluster.catalog.create_channel(channel, replaces=prepared.channel.replaces)


@pytest.fixture
def runner(cluster):
    for name in NAMES:
        create(cluster, TEXT.format(name))
        cluster.catalog.subscriptions.attach("b1", cluster.catalog.channels.get(name), {"kind": "fire"})
    run = Runner(cluster)
    scheduler = Scheduler(cluster.catalog, run, at_once=2)
    scheduler.start()
    yield cluster, run, scheduler
    scheduler.stop()
    assert run.running.total() == 0
    assert run.most_of_one <= 1, "executions of a channel run one after the other"


def committed(cluster) -> list[int]:
    """How far each channel has read the reports."""
    open_ones = {execution.channel for execution in cluster.catalog.executions.open()}
    return [0 if name in open_ones else cluster.catalog.channels.positions(name)["reports"] for name in NAMES]


def problems(cluster, scheduler) -> list[str]:
    found = [scheduler.problem(channel) for channel in cluster.catalog.channels.all()]
    return [problem for problem in found if problem]


def test_channels_run_after_commits_two_at_once(runner):
    cluster, run, scheduler = runner
    for number in range(1, 6):
        cluster.add_batch()
        scheduler.committed("reports")
        wait_until(lambda n=number: committed(cluster) == [n] * 3, f"batch {number}")
    assert run.most == 2
    assert problems(cluster, scheduler) == []


def test_what_is_committed_while_a_channel_runs_waits_for_its_end(runner):
    cluster, run, scheduler = runner
    for name in NAMES[1:]:  # they would take the room that a second execution needs
        cluster.catalog.drop_channel(name)
    scheduler.changed()
    run.takes_s = 0.2  # some periods
    for _ in range(2):
        cluster.add_batch()
        scheduler.committed("reports")
        wait_until(lambda: run.running["one"], "it runs")
    wait_until(lambda: cluster.catalog.channels.numbers("one").committed == 2, "both batches")


def test_an_execution_that_failed_is_tried_again_with_its_number(runner):
    cluster, run, scheduler = runner
    run.failures = 2
    cluster.add_batch()
    scheduler.committed("reports")
    wait_until(lambda: "out of luck" in problems(cluster, scheduler), "the failure is told")
    wait_until(lambda: committed(cluster) == [1, 1, 1], "tried again")
    wait_until(lambda: problems(cluster, scheduler) == [], "forgotten once it went well")
    assert [cluster.catalog.channels.numbers(name).committed for name in NAMES] == [1, 1, 1]


@pytest.mark.parametrize("step_s", [-3600.0, 25 * 3600.0])
def test_channels_run_though_the_wall_clock_is_set(runner, monkeypatch, step_s):
    cluster, _, scheduler = runner
    there_s = time.time()
    monkeypatch.setattr(time, "time", lambda: there_s + step_s)
    for number in (1, 2):
        cluster.add_batch()
        scheduler.committed("reports")
        wait_until(lambda n=number: committed(cluster) == [n] * 3, f"batch {number}")


def test_a_channel_that_is_dropped_runs_no_more(runner):
    cluster, _, scheduler = runner
    cluster.catalog.drop_channel("two")
    scheduler.changed()
    cluster.add_batch()
    scheduler.committed("reports")
    wait_until(lambda: cluster.catalog.channels.positions("three") == {"reports": 1}, "the others run")
    assert cluster.catalog.channels.positions("two") == {}
    assert cluster.catalog.executions.open("two") == []


def test_a_channel_that_is_replaced_while_it_fails_goes_on_with_the_new_text(runner):
    cluster, run, scheduler = runner
    run.failures = 10**9
    cluster.add_batch()
    scheduler.committed("reports")
    wait_until(lambda: len(problems(cluster, scheduler)) == 3, "all fail")
    create(cluster, TEXT.format("two").replace("CREATE", "CREATE OR REPLACE"))
    assert scheduler.problem(cluster.catalog.channels.get("two")) == "", "the new text has not failed"
    run.failures = 0
    scheduler.changed()
    wait_until(lambda: cluster.catalog.channels.numbers("two").committed == 2, "the next number, without a pause")
    (new, old) = cluster.catalog.outcomes.history("two", 9)
    assert new["inputs"] == old["inputs"], "the same records"


def test_a_catalogue_that_fails_ends_no_scheduling(runner, monkeypatch):
    cluster, _, scheduler = runner
    monkeypatch.setattr("nearcast.pipeline.service.scheduler._TROUBLE_S", 0.05)
    raised, original = [], cluster.catalog.channels.all

    def surprise():
        if len(raised) < 3:
            raised.append(1)
            raise sqlite3.OperationalError("database or disk is full")
        return original()

    monkeypatch.setattr(cluster.catalog.channels, "all", surprise)
    scheduler.changed()
    wait_until(lambda: len(raised) == 3, "looked at three times")
    assert "database or disk is full" in scheduler._troubles.problem
    cluster.add_batch()
    scheduler.committed("reports")
    wait_until(lambda: committed(cluster) == [1] * 3, "scheduled all the same")
