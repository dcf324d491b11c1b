"""The comparison of forwarding with nearcast: the count finds what is planted, and what a few seeds give."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from nearcast.cli.app import app
from nearcast.sim.forwarding.comparison import (
    Case,
    Outcome,
    Protocol,
    Received,
    Row,
    Tally,
    count,
    count_forwarding,
    run_case,
    summarise,
)
from nearcast.sim.forwarding.world import ForwardingWorld
from nearcast.sim.programs import Publication
from nearcast.sim.world import Setup

TOPIC = b"topic-0"

# --- the count finds what is planted


def _history() -> tuple[list[Publication], Received]:
    publications = [Publication(TOPIC, 5, number, 1.0 + number, 2.0 + number) for number in range(1, 11)]
    return publications, Received(TOPIC, 0.5, [(5, number) for number in range(1, 11)])


def test_a_message_taken_out_is_found_lost() -> None:
    publications, received = _history()
    assert count(publications, [received]) == Tally(acknowledged=10, owed=10)
    del received.messages[4]
    assert count(publications, [received]) == Tally(acknowledged=10, owed=10, lost=1)


def test_a_message_taken_out_of_a_run_is_found_lost() -> None:
    world = ForwardingWorld(3, Setup(moves_per_s=0.0))
    world.run()
    clean = count_forwarding(world)
    assert (clean.lost, clean.duplicated, clean.reordered) == (0, 0, 0)
    subscriber = world.receivers[0]
    assert len(subscriber.received) > 50
    subscriber.received.pop(40)
    assert count_forwarding(world).lost == 1


def test_doubled_and_swapped_messages_are_found() -> None:
    publications, received = _history()
    received.messages.append(received.messages[-1])
    assert count(publications, [received]) == Tally(acknowledged=10, owed=10, duplicated=1)
    received.messages.pop()
    received.messages[2], received.messages[3] = received.messages[3], received.messages[2]
    assert count(publications, [received]) == Tally(acknowledged=10, owed=10, reordered=1)


def test_only_what_is_owed_counts() -> None:
    publications, _ = _history()
    publications[9].acknowledged_s = None  # the last was never answered
    assert count(publications, [Received(TOPIC, 5.5, [])]) == Tally(acknowledged=9, owed=5, lost=5)
    assert count(publications, [Received(TOPIC, None, [])]) == Tally(acknowledged=9)
    assert count(publications, [Received(b"other", 0.0, [])]) == Tally(acknowledged=9)


# --- the comparison

CRASH_SEEDS = range(40)
CALM_SEEDS = range(24)


def _row(protocol: Protocol, *, crashes: bool, seeds: range = CALM_SEEDS) -> Row:
    case = Case(protocol, crashes)
    return summarise(case, [run_case(case, seed) for seed in seeds])


def test_forwarding_loses_with_crashes_and_nearcast_does_not() -> None:
    forwarding = _row(Protocol.FORWARDING, crashes=True, seeds=CRASH_SEEDS)
    nearcast = _row(Protocol.NEARCAST, crashes=True, seeds=CRASH_SEEDS)
    assert forwarding.seeds_with_loss >= 8
    assert forwarding.reordered >= 50
    assert (nearcast.lost, nearcast.duplicated, nearcast.reordered, nearcast.failed) == (0, 0, 0, [])
    assert nearcast.moves >= forwarding.moves  # not because it moves less
    assert nearcast.owed >= 15_000


def test_forwarding_loses_without_faults_where_brokers_are_apart() -> None:
    row = _row(Protocol.FORWARDING, crashes=False)
    lingering = _row(Protocol.FORWARDING_LINGER, crashes=False)
    assert row.seeds_with_loss >= 3
    assert lingering.lost < row.lost / 4


def test_forwarding_loses_nothing_without_faults_in_one_data_centre() -> None:
    """As the paper says: the losses above are not mistakes of the variant's code."""
    row = _row(Protocol.FORWARDING_LAN, crashes=False)
    assert (row.lost, row.duplicated, row.failed) == (0, 0, [])
    assert row.moves >= 60


@pytest.mark.parametrize("protocol", [Protocol.FORWARDING, Protocol.NEARCAST])
def test_one_seed_gives_one_outcome(protocol: Protocol) -> None:
    case = Case(protocol, crashes=True)
    assert run_case(case, 11) == run_case(case, 11)


def test_only_nearcast_can_fail() -> None:
    lossy = Tally(acknowledged=10, owed=10, lost=1)
    for protocol, failed in ((Protocol.FORWARDING, []), (Protocol.NEARCAST, [3])):
        case = Case(protocol, crashes=False)
        row = summarise(case, [Outcome(case, 3, 1, lossy), Outcome(case, 4, 1, Tally(10, 10))])
        assert row.failed == failed
        assert row.share_of_seeds_with_loss == 0.5
        assert row.lost_per_million == pytest.approx(50_000)


def test_the_command_prints_all_cases() -> None:
    result = CliRunner().invoke(
        app, ["simulate", "protocol", "--variant", "forwarding", "--seeds", "2", "--output", "json"]
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [(row["protocol"], row["crashes"]) for row in found["rows"]] == [
        (protocol, crashes) for crashes in (False, True) for protocol in Protocol
    ]
    assert all(row["seeds"] == 2 and row["owed"] > 100 for row in found["rows"])


def test_the_command_knows_its_variants() -> None:
    result = CliRunner().invoke(app, ["simulate", "protocol", "--variant", "other"])
    assert result.exit_code == 2
