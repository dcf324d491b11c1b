"""`nearcast brokers profile` and `messages`: what is refused, printed, drawn and applied, on a real cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from asking import answer, heed_ctrl_c, measuring, nearcast

from nearcast.cli.brokers_profile import chart, remark, threshold_rows
from nearcast.runtime.profiling.configuration import Configuration
from nearcast.runtime.profiling.profile import Profile
from nearcast.runtime.profiling.runs import Run
from nearcast.runtime.profiling.threshold import Threshold
from nearcast.testing.waiting import wait_until

QUICK = ("--runs", "8", "--seconds", "0.5", "--topics", "1,2", "--publishers", "1", "--subscribers", "1,2", "--force")
NOTHING_IS_SLOW = ("--limit-ms", "60000")
ALL_ARE_SLOW = ("--limit-ms", "0.0001")

WORKLOAD = """\
name: some
topics: 20
partitionsPerTopic: 1
messageSize: 100
subscriptionsPerTopic: 1
consumerPerSubscription: 1
producersPerTopic: 1
producerRate: 10000
"""


def made(p95_s: float, **figures: float) -> Run:
    configuration = Configuration(topics=1, publishers=1, subscribers=1, payload_bytes=1, rate_per_s=1000.0)
    shown = {"published_per_s": 1000.0, "output_per_s": 1000.0, "output_bytes_per_s": 1e5, "cpu_share": 0.1}
    latencies = {f"latency_p{percent}_s": p95_s for percent in (50, 95, 99)}
    return Run(configuration=configuration, **{**shown, **latencies, "measuring_cpu_share": 0.1, **figures})


# --- what is shown


def test_a_remark_says_what_is_wrong_with_a_run() -> None:
    assert remark(made(0.001), 0.01) == ""
    assert remark(made(0.1), None) == ""
    assert remark(made(0.1), 0.01) == "slow"
    assert remark(made(0.1, cpu_share=0.95), 0.01) == "slow, limited by server"
    behind = made(0.001, published_per_s=400.0, measuring_cpu_share=0.9)
    assert remark(behind, 0.01) == "40% of the asked rate, limited by measuring side"


def test_a_threshold_is_shown_with_what_it_rests_on() -> None:
    found = Threshold(messages_high_per_s=5e4, at_least=True, unloaded_p95_s=1e-3, limit_s=3e-3, runs=9, slow=0)
    rows = dict(threshold_rows(found))
    assert rows["R_out^th, messages/s out"] == "at least 50,000"
    assert (rows["unloaded p95"], rows["slow is above"]) == ("1.00 ms", "3.00 ms")
    assert dict(threshold_rows(Threshold(problem="few"))) == {"R_out^th, messages/s out": "not found: few"}


def test_a_chart_has_every_run_once_and_the_threshold() -> None:
    runs = (made(0.001), made(0.1), made(0.2, measuring_cpu_share=0.9))
    found = Threshold(messages_high_per_s=1000.0, limit_s=0.01)
    (panel,) = chart("b1", Profile(runs=runs, correlations={}, threshold=found)).panels
    assert [(marks.label, len(marks.x)) for marks in panel.marks] == [
        ("as without load", 1),
        ("slow", 1),
        ("measuring side busy, not counted", 1),
    ]
    assert panel.lines[0].x == [1000.0, 1000.0]
    (bare,) = chart("b1", Profile(runs=runs, correlations={}, threshold=Threshold(problem="few"))).panels
    assert (bare.lines, bare.limits) == ((), ())


# --- on a cluster


@pytest.mark.live
@pytest.mark.xdist_group("cli brokers profile")
class TestOnACluster:
    def test_a_profile_is_printed_drawn_and_applied(self, cluster: dict[str, Any], tmp_path: Path) -> None:
        workload, picture = tmp_path / "some.yaml", tmp_path / "b1.png"
        workload.write_text(WORKLOAD)
        options = ("--workload", str(workload), "--scale", "10", "--plot", str(picture), *NOTHING_IS_SLOW)
        found = answer(cluster, "brokers", "profile", "b1", *QUICK, *options, "--apply", "--at-least")
        assert (found["broker"], found["applied"], found["scale"]) == ("b1", True, 10)
        assert len(found["runs"]) == 9
        first, last = found["runs"][0], found["runs"][-1]
        assert first["configuration"]["rate_per_s"] is None
        assert last["configuration"]["name"] == "some"
        assert last["configuration"]["topics"] == 2
        assert 0 < last["published_per_s"] < 1200
        assert 0 < first["latency_p50_s"] <= first["latency_p95_s"] <= first["latency_p99_s"]
        assert set(found["correlations"]) > {"messages/s out", "bytes/s out", "topics"}
        threshold = found["threshold"]
        assert threshold["at_least"] is True
        assert threshold["messages_high_per_s"] == max(run["output_per_s"] for run in found["runs"])
        assert picture.read_bytes().startswith(b"\x89PNG")
        shown = answer(cluster, "brokers")["brokers"]
        assert shown["b1"]["messages_high_per_s"] == threshold["messages_high_per_s"]
        assert shown["b2"]["messages_high_per_s"] is None
        assert measuring(cluster["brokers"]["b1"]) == 0

    def test_a_lower_bound_is_not_applied_unless_it_may_be(self, cluster: dict[str, Any]) -> None:
        result = nearcast(cluster, "brokers", "profile", "b2", *QUICK, *NOTHING_IS_SLOW, "--apply")
        assert result.exit_code == 1
        assert "as fast as possible" in result.stdout
        assert "at least" in result.stdout
        assert "it is a lower bound; repeat with --at-least" in result.stderr
        assert answer(cluster, "brokers")["brokers"]["b2"]["messages_high_per_s"] is None

    def test_without_a_threshold_nothing_is_applied(self, cluster: dict[str, Any]) -> None:
        found = answer(cluster, "brokers", "profile", "b2", *QUICK, *ALL_ARE_SLOW, "--apply", code=1)
        assert found["applied"] is False
        assert "give a higher limit" in found["threshold"]["problem"]
        assert answer(cluster, "brokers")["brokers"]["b2"]["messages_high_per_s"] is None

    def test_a_threshold_is_set_by_hand_shown_and_taken_back(self, cluster: dict[str, Any]) -> None:
        set_to = answer(cluster, "brokers", "messages", "b3", "400000")["brokers"]["b3"]
        assert set_to["messages_high_per_s"] == 400000
        shown = nearcast(cluster, "brokers").stdout
        assert "messages/s at most" in shown
        assert "400,000" in shown
        taken = answer(cluster, "brokers", "messages", "b3", "0")["brokers"]["b3"]
        assert taken["messages_high_per_s"] is None

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (("profile", "b9"), "unknown broker 'b9'"),
            (("profile", "b1", "--topics", "1,x"), "--topics '1,x': write whole numbers"),
            (("profile", "b1", "--topics", "900"), "connections, and 1000 are allowed"),
            (("profile", "b1", "--runs", "0"), "nothing to measure"),
            (("profile", "b1", "--plot", "picture.jpg"), "ends in .png"),
            (("profile", "b1", "--plot", "missing/picture.png"), "no folder missing"),
            (("profile", "b1", "--workload", "missing.yaml"), "missing.yaml: cannot be read"),
            (("profile", "b1", "--factor", "nan"), "nan as factor"),
            (("messages", "b9", "1"), "unknown broker 'b9'"),
            (("messages", "b1", "nan"), "use 0 to 1e+12"),
        ],
    )
    def test_wrong_usage_is_refused_before_anything_is_measured(
        self, cluster: dict[str, Any], arguments: tuple[str, ...], said: str
    ) -> None:
        result = nearcast(cluster, "brokers", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert said in result.stderr

    def test_ctrl_c_ends_a_profile_and_its_connections(self, cluster: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "nearcast", "brokers", "profile", "b1", "--seconds", "30", "--force"]
        url = cluster["brokers"]["b1"]
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NEARCAST_URL": url},
            preexec_fn=heed_ctrl_c,
        ) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == "b1: measuring 24 times for 30 s ...\n"
            wait_until(lambda: measuring(url), "it has its connections")
            process.send_signal(signal.SIGINT)
            out, messages = process.communicate(timeout=5)
            assert (process.returncode, out) == (130, "")
            assert messages.startswith("0/24 ")
            assert len(messages.splitlines()) == 1
        wait_until(lambda: not measuring(url), "its connections are gone")
