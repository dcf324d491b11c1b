"""CREATE OR REPLACE CHANNEL: subscriptions stay, numbers go on, and no record is lost or read twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearcast.pipeline.catalog.catalog import Catalog, Made
from nearcast.pipeline.catalog.channels import StoredChannel, described
from nearcast.pipeline.catalog.database import Conflict
from nearcast.pipeline.catalog.datasets import Segment
from nearcast.pipeline.catalog.executions import Size
from nearcast.pipeline.channels.execution import prepare
from nearcast.pipeline.channels.language import parse_channel

HEAD = "CREATE {}CHANNEL c(kind STRING, least INT) PERIOD {} SECONDS AS "
OLD = HEAD.format("", 1) + "SELECT id FROM NEW reports WHERE kind = :kind AND level >= :least"
NEW = HEAD.format("OR REPLACE ", 1) + (
    "SELECT r.id, o.id AS other FROM NEW reports r, NEW others o WHERE r.kind = :kind AND o.level >= :least"
)
OTHERS_ALONE = HEAD.format("OR REPLACE ", 1) + "SELECT id FROM NEW others WHERE kind = :kind AND level >= :least"
SCHEMA = "id INT, kind STRING, level INT"


class Crash(Exception):
    """Stands for a SIGKILL at this point."""


@pytest.fixture
def catalog(tmp_path: Path):
    catalog = Catalog(tmp_path)
    for name in ("reports", "others"):
        catalog.datasets.create(name, SCHEMA)
    assert create(catalog, OLD) is Made.CREATED
    catalog.brokers.put("b1", "http://b1")
    yield catalog
    catalog.close()


def create(catalog: Catalog, text: str) -> Made:
    schemas = {name: catalog.datasets.schema(name) for name in catalog.datasets.names()}
    prepared = prepare(parse_channel(text), schemas)
    return catalog.create_channel(described(prepared), replaces=prepared.channel.replaces)


def channel(catalog: Catalog) -> StoredChannel:
    return catalog.channels.get("c")


def subscribe(catalog: Catalog, least: int) -> str:
    return catalog.subscriptions.attach("b1", channel(catalog), {"kind": "fire", "least": least}).subscription


def add_batch(catalog: Catalog, dataset: str) -> None:
    number = catalog.datasets.position(dataset) + 1
    catalog.datasets.commit(dataset, Segment(first=number, last=number, rows=1, bytes=9, made_s=catalog.clock()))


def held(catalog: Catalog) -> list[str]:
    return [name for name, _ in catalog.subscriptions.at("c", catalog.channels.numbers("c").version)]


def dump(catalog: Catalog) -> dict[str, list[tuple]]:
    tables = catalog.database.rows("SELECT name FROM sqlite_master WHERE type = 'table' AND name != 'running_time'")
    return {row["name"]: [tuple(r) for r in catalog.database.rows(f"SELECT * FROM {row['name']}")] for row in tables}


def test_subscriptions_stay_and_numbers_go_on(catalog):
    one, two = subscribe(catalog, 1), subscribe(catalog, 2)
    add_batch(catalog, "reports")
    catalog.executions.commit(catalog.next_execution(channel(catalog)), {one: Size(1, 1)})
    add_batch(catalog, "reports")
    add_batch(catalog, "others")
    assert create(catalog, NEW) is Made.REPLACED
    assert held(catalog) == sorted([one, two])
    assert subscribe(catalog, 1) == one
    add_batch(catalog, "others")
    execution = catalog.next_execution(channel(catalog))
    assert (execution.number, execution.inputs.new) == (2, {"reports": (1, 2), "others": (1, 2)})
    assert channel(catalog).from_execution == 2
    assert [number for number, _ in catalog.outcomes.after(one, "c", 0, 10)] == [1], "what was committed stays"


def test_the_same_text_again_changes_nothing_and_without_another_one_it_is_created(catalog):
    subscribe(catalog, 1)
    assert create(catalog, NEW) is Made.REPLACED
    before = dump(catalog)
    assert create(catalog, NEW) is Made.UNCHANGED
    assert dump(catalog) == before
    catalog.drop_channel("c")
    assert create(catalog, NEW) is Made.CREATED


@pytest.mark.parametrize("text", [NEW.replace("least INT", "least BIGINT"), OLD.replace("least", "lowest")])
def test_other_parameters_are_refused_with_both_lists(catalog, text):
    before = dump(catalog)
    with pytest.raises(Conflict, match=r"has parameters kind STRING, least INT, but the new text has kind STRING, l"):
        create(catalog, text.replace("CREATE CHANNEL", "CREATE OR REPLACE CHANNEL"))
    assert dump(catalog) == before


def test_without_or_replace_another_text_is_refused_with_how_to(catalog):
    with pytest.raises(Conflict, match="CREATE OR REPLACE CHANNEL"):
        create(catalog, OLD.replace("level >=", "level >"))


def test_an_open_execution_ends_empty_and_its_records_are_for_the_next(catalog):
    one = subscribe(catalog, 1)
    add_batch(catalog, "reports")
    old = catalog.next_execution(channel(catalog))
    add_batch(catalog, "reports")
    assert create(catalog, NEW) is Made.REPLACED
    assert catalog.executions.open() == []
    assert not catalog.executions.commit(old, {one: Size(1, 1)}), "who runs it has nothing to commit any more"
    assert catalog.executions.floor("reports", 2) == 0, "files that it reads are not merged away"
    new = catalog.next_execution(channel(catalog))
    assert (new.number, new.inputs.new) == (2, {"reports": (0, 2), "others": (0, 0)})
    assert catalog.outcomes.history("c", 9)[1]["problem"] == "the channel was replaced"
    assert catalog.outcomes.given_up(channel(catalog)) == ""


def test_a_dataset_that_is_read_no_more_is_not_kept_from_merging(catalog):
    assert catalog.executions.floor("reports", 7) == 0
    create(catalog, OTHERS_ALONE)
    assert catalog.executions.floor("reports", 7) == 7
    assert catalog.channels.positions("c") == {"others": 0}


def test_who_failed_the_old_text_is_tried_again(catalog):
    one, two = subscribe(catalog, 1), subscribe(catalog, 2)
    add_batch(catalog, "reports")
    execution = catalog.next_execution(channel(catalog))
    assert catalog.set_aside(execution, {one: "it fails"})
    create(catalog, NEW)
    assert catalog.subscriptions.problems("c") == {}
    assert held(catalog) == sorted([one, two])
    assert not catalog.set_aside(execution, {two: "it fails"}), "the old text has no say any more"
    assert held(catalog) == sorted([one, two])


def test_a_crash_at_any_step_leaves_the_old_channel_or_the_new(catalog, monkeypatch):
    one = subscribe(catalog, 1)
    add_batch(catalog, "reports")
    catalog.set_aside(catalog.next_execution(channel(catalog)), {one: "it fails"})
    before, steps = dump(catalog), 0
    while True:
        steps += 1
        with monkeypatch.context() as patch:
            crash_at(catalog, patch, steps)
            try:
                assert create(catalog, NEW) is Made.REPLACED
                break
            except Crash:
                assert dump(catalog) == before, f"after step {steps}"
    assert steps > 6
    assert catalog.next_execution(channel(catalog)).inputs.new == {"reports": (0, 1), "others": (0, 0)}


def crash_at(catalog: Catalog, patch: pytest.MonkeyPatch, step: int) -> None:
    """At the step-th change of the database."""
    done = 0

    def counted(real):
        def run(sql, values=()):
            nonlocal done
            done += 1
            if done == step:
                raise Crash
            return real(sql, values)

        return run

    for name in ("run", "run_many"):
        patch.setattr(catalog.database, name, counted(getattr(catalog.database, name)))
