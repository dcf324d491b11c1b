"""`nearcast brokers`: rates as people write them, what is shown, calibration and draining on a real cluster."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from asking import answer, heed_ctrl_c, measuring, nearcast

from nearcast.cli.brokers import BROKER_COLUMNS, broker_data, broker_row
from nearcast.cli.quiet import busy_share, chosen
from nearcast.cli.shared import bytes_per_s
from nearcast.core.wire.bus import Report, State
from nearcast.core.wire.views import BrokerView
from nearcast.errors import UsageError
from nearcast.testing.waiting import wait_until

# --- rates


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1000", 1e3),
        ("1.5e8", 1.5e8),
        ("125MB", 125e6),
        ("125 mb/s", 125e6),
        ("80MiB", 80 * 2**20),
        ("1Gbit", 125e6),
        ("1Gbit/s", 125e6),
        ("1gbitps", 125e6),
        ("100kbits", 12500),
        ("2G", 2e9),
        ("64Ki", 65536),
        ("7bytes", 7),
    ],
)
def test_rates_are_read_as_people_write_them(text: str, rate: float) -> None:
    assert bytes_per_s(text) == rate


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "bad rate ''"),
        ("fast", "bad rate 'fast'"),
        ("-5MB", "bad rate '-5MB'"),
        ("1Qbit", "unknown unit 'Qbit'"),
        ("1MB 2MB", "bad rate '1MB 2MB'"),
        ("0", "out of range"),
        ("1bit", "out of range"),
        ("1e18", "out of range"),
        ("nan", "bad rate"),
        ("inf", "bad rate"),
    ],
)
def test_a_bad_rate_says_how_to_write_one(text: str, said: str) -> None:
    with pytest.raises(UsageError, match="125MB, 80MiB, 1Gbit") as refused:
        bytes_per_s(text)
    assert said in str(refused.value)


# --- what is shown


def view(output_bytes_per_s: float | None = 5e6, cpu: float = 0.1, **fields: Any) -> BrokerView:
    report = None
    if output_bytes_per_s is not None:
        report = Report("b1", 0.0, 1.0, output_bytes_per_s, 1e3, 7, 10**6, cpu, 0.0)
    return BrokerView(
        **{"url": "redis://h", "site": "paris", "state": "member", "alive": True, **fields}, report=report
    )


def test_the_load_ratio_is_output_over_capacity() -> None:
    loaded = view(capacity_bytes_per_s=20e6)
    assert broker_data(loaded)["load_ratio"] == 0.25
    row = dict(zip(BROKER_COLUMNS, broker_row("b1", loaded), strict=True))
    assert (row["capacity MB/s"], row["load ratio"], row["out kB/s"]) == ("20.0", "0.25", "5000.0")


def test_without_a_capacity_or_a_report_there_is_no_load_ratio() -> None:
    assert broker_data(view())["load_ratio"] is None
    assert broker_data(view())["capacity_bytes_per_s"] is None
    assert dict(zip(BROKER_COLUMNS, broker_row("b1", view()), strict=True))["capacity MB/s"] == "not known"
    silent = view(None, capacity_bytes_per_s=20e6)
    assert broker_data(silent)["load_ratio"] is None
    assert dict(zip(BROKER_COLUMNS, broker_row("b1", silent), strict=True))["load ratio"] == ""


def test_how_busy_a_broker_is_goes_by_its_worst_figure() -> None:
    assert busy_share(view(cpu=0.4)) == 0.4
    assert busy_share(view(5e6, 0.1, capacity_bytes_per_s=10e6)) == 0.5
    assert busy_share(view(None)) is None


def test_members_are_calibrated_and_others_are_refused() -> None:
    state = State("r", brokers={"b2": view(), "b1": view(), "b3": view(state="leaving")})
    assert chosen(state, []) == ["b1", "b2"]
    assert chosen(state, ["b2", "b2"]) == ["b2"]
    with pytest.raises(UsageError, match="'b3' is leaving"):
        chosen(state, ["b3"])
    with pytest.raises(UsageError, match="unknown broker 'b9'; the cluster has: b1, b2, b3"):
        chosen(state, ["b9"])
    with pytest.raises(UsageError, match="no member"):
        chosen(State("r"), [])


# --- on a cluster


@pytest.mark.live
@pytest.mark.xdist_group("cli brokers")
class TestOnACluster:
    def test_a_calibration_is_printed_and_applied(self, cluster: dict[str, Any]) -> None:
        found = answer(cluster, "brokers", "calibrate", "b1", "--seconds", "1", "--apply", "--force")
        assert found["applied"] is True
        assert list(found["brokers"]) == ["b1"]
        figures = found["brokers"]["b1"]
        assert set(figures) == {
            *("capacity_bytes_per_s", "deliveries_per_s", "latency_p99_s", "cpu_share"),
            *("peak_bytes_per_s", "peak_cpu_share", "measuring_cpu_share", "limited_by"),
        }
        assert 1e6 < figures["capacity_bytes_per_s"] < figures["peak_bytes_per_s"]
        assert figures["limited_by"] in ("server", "measuring side", "path")
        shown = answer(cluster, "brokers")["brokers"]
        assert shown["b1"]["capacity_bytes_per_s"] == figures["capacity_bytes_per_s"]
        assert shown["b2"]["capacity_bytes_per_s"] is None

    def test_a_dry_run_changes_nothing_and_says_how_to_go_on(self, cluster: dict[str, Any]) -> None:
        result = nearcast(cluster, "brokers", "calibrate", "b2", "--seconds", "1")
        assert result.exit_code == 0, result.stderr
        assert "capacity MB/s" in result.stdout
        assert "not applied: repeat with --apply, or run: nearcast brokers capacity b2 " in result.stderr
        assert answer(cluster, "brokers")["brokers"]["b2"]["capacity_bytes_per_s"] is None

    def test_a_capacity_is_set_by_hand_and_a_loaded_broker_is_not_disturbed(self, cluster: dict[str, Any]) -> None:
        # Its agent alone has the server send some kB/s: much for a server of 1 kB/s.
        set_to = answer(cluster, "brokers", "capacity", "b3", "8kbit")["brokers"]["b3"]
        assert set_to["capacity_bytes_per_s"] == 1000
        result = nearcast(cluster, "brokers", "calibrate", "b3", "--seconds", "1")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "of what it can carry" in result.stderr
        assert "--force" in result.stderr

    @pytest.mark.parametrize(
        "arguments", [("calibrate", "b9"), ("capacity", "b9", "1MB"), ("drain", "b9"), ("drain", "b9", "--cancel")]
    )
    def test_an_unknown_broker_is_a_usage_error(self, cluster: dict[str, Any], arguments: tuple[str, ...]) -> None:
        result = nearcast(cluster, "brokers", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == "error: unknown broker 'b9'; the cluster has: b1, b2, b3\n"

    def test_ctrl_c_ends_a_calibration_and_its_connections(self, cluster: dict[str, Any]) -> None:
        command = [sys.executable, "-m", "nearcast", "brokers", "calibrate", "b1", "--seconds", "30", "--force"]
        url = cluster["brokers"]["b1"]
        environment = {**os.environ, "NEARCAST_URL": url}
        with subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
            preexec_fn=heed_ctrl_c,
        ) as process:
            assert process.stderr is not None
            assert process.stderr.readline() == "b1: measuring for at most 30 s ...\n"
            wait_until(lambda: measuring(url), "it has its connections")
            process.send_signal(signal.SIGINT)
            out, messages = process.communicate(timeout=5)
            assert (process.returncode, out, messages) == (130, "", "")
        wait_until(lambda: not measuring(url), "its connections are gone")

    def test_a_broker_is_drained_and_leaves(self, cluster: dict[str, Any]) -> None:
        (gone,) = answer(cluster, "brokers", "drain", "b3")["brokers"].values()
        assert gone["state"] == "left"
        assert answer(cluster, "brokers")["brokers"]["b3"]["state"] == "left"
