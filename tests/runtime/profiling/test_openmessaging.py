"""Workload files: what they mean here, how they are scaled, and that no file is misread."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nearcast.errors import UsageError
from nearcast.runtime.profiling.openmessaging import FILE_MAX_BYTES, Workload, read_workload

KEYS = {
    "topics": "10",
    "partitionsPerTopic": "4",
    "messageSize": "1024",
    "subscriptionsPerTopic": "3",
    "consumerPerSubscription": "4",
    "producersPerTopic": "20",
    "producerRate": "100000",
}


def written(folder: Path, **changes: str | None) -> Path:
    path = folder / "load.yaml"
    keys = {key: value for key, value in {**KEYS, **changes}.items() if value is not None}
    path.write_text("# comment\n\nname: a: load, with # signs\n\n" + "".join(f"{k}: {v}\n" for k, v in keys.items()))
    return path


def test_a_file_is_read_in_our_words(tmp_path: Path) -> None:
    assert read_workload(written(tmp_path)) == Workload(
        name="load", topics=40, publishers=20, subscribers=3, payload_bytes=1024, rate_per_s=100_000
    )


def test_what_yaml_allows_besides_is_read_too(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    lines = [f"{key}: {value}   # said" for key, value in KEYS.items()]
    path.write_bytes(("---\r\n" + "\r\n".join(lines) + '\r\npayloadFile: "payload/x.data"\r\nempty:\r\n').encode())
    assert read_workload(path).topics == 40
    assert read_workload(written(tmp_path, topics='"7"')).topics == 28


@pytest.mark.parametrize("rate", ["0", "10000000", "999999999999"])
def test_no_rate_and_a_huge_one_mean_as_fast_as_possible(tmp_path: Path, rate: str) -> None:
    workload = read_workload(written(tmp_path, producerRate=rate))
    assert workload.rate_per_s is None
    scaled = workload.scaled(10, 2.0)
    assert scaled.rate_per_s is None
    assert workload.said(scaled, 10) == (
        "load: divided by 10: 4 of 40 topics, 2 of 20 publishers on each, as fast as possible"
    )


def test_a_scale_divides_rates_and_counts(tmp_path: Path) -> None:
    workload = read_workload(written(tmp_path))
    scaled = workload.scaled(10, 2.0)
    assert (scaled.topics, scaled.publishers, scaled.subscribers, scaled.payload_bytes) == (4, 2, 3, 1024)
    assert scaled.rate_per_s == 2500  # on each of 4 topics
    assert scaled.name == "load"
    assert "4 of 40 topics, 2 of 20 publishers on each, 10,000 of 100,000 messages/s in" in workload.said(scaled, 10)
    tiny = workload.scaled(1000, 2.0)
    assert (tiny.topics, tiny.publishers, tiny.rate_per_s) == (1, 1, 100)


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        (1, "load: it needs 920 connections|too many"),
        (1e5, "1 messages per second are too few"),
        (0.5, "a scale of 0.5"),
        (float("nan"), "a scale of nan"),
        (float("inf"), "a scale of inf"),
    ],
)
def test_scales_have_limits(tmp_path: Path, scale: float, said: str) -> None:
    workload = read_workload(written(tmp_path, partitionsPerTopic="100" if scale == 1 else "4"))
    with pytest.raises(UsageError) as refused:
        workload.scaled(scale, 2.0)
    if scale == 1:
        assert "it needs 23,000 connections, and 1000 are allowed: use a larger --scale" in str(refused.value)
    else:
        assert said in str(refused.value)


@pytest.mark.parametrize("value", ["NaN", "nan", "inf", "-1", "1.5", "1e3", "many", "", "[1]", "0x10", "9" * 30, "١"])
@pytest.mark.parametrize("key", ["topics", "producerRate", "messageSize"])
def test_a_wrong_value_names_file_and_key(tmp_path: Path, key: str, value: str) -> None:
    path = written(tmp_path, **{key: value})
    with pytest.raises(UsageError) as refused:
        read_workload(path)
    assert str(refused.value).startswith(f"{path}: {key} is ")
    assert "write a whole number from " in str(refused.value)
    assert len(str(refused.value)) < len(str(path)) + 150


@pytest.mark.parametrize("key", ["topics", "producersPerTopic", "subscriptionsPerTopic", "messageSize"])
def test_only_the_rate_may_be_zero(tmp_path: Path, key: str) -> None:
    with pytest.raises(UsageError, match=f"{key} is '0'"):
        read_workload(written(tmp_path, **{key: "0"}))


def test_missing_keys_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no topics, messageSize: is this a workload file"):
        read_workload(written(tmp_path, topics=None, messageSize=None))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"topics: 1\ntopics: 2\n", "line 2: topics is there a second time"),
        (b"a:\n  b: 1\n", "line 2: '  b: 1' is not `key: value`"),
        (b"- 1\n", "line 1: '- 1' is not"),
        (b"{topics: 1}", "is not `key: value`"),
        (b"topics:1\n", "is not `key: value`"),
        (b"\xff\xfe\x00", "it is not text"),
        (b"#" * (FILE_MAX_BYTES + 1), "more than 65,536 bytes"),
        (b"", "no topics, partitionsPerTopic"),
        (b"\0\0\0", "is not `key: value`"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(UsageError) as refused:
        read_workload(path)
    assert said in str(refused.value)
    assert str(path) in str(refused.value)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    for path in (tmp_path / "gone.yaml", tmp_path):
        with pytest.raises(UsageError, match="cannot be read"):
            read_workload(path)


@given(content=st.binary(max_size=200))
def test_any_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)
    with pytest.raises(UsageError):
        read_workload(path)
