"""Lives, alone: which end with a membership, and when they are forgotten."""

from __future__ import annotations

import msgspec
from parts import JOINING, Surroundings, journal_of

from nearcast.core.controller.lives import Lives
from nearcast.core.model.logs import FORMER_MAX, FormerLife, Log
from nearcast.core.model.membership import Membership

SHORT, LONG = (Log(name, 3, ("*",), retain_s, 1 << 20) for name, retain_s in (("short", 60.0), ("long", 600.0)))


def cluster(*logs: Log, former: tuple[FormerLife, ...] = ()) -> tuple[Surroundings, Lives]:
    one = Surroundings(journal_of("b1", "b2", b3=JOINING))
    one.journal.membership = msgspec.structs.replace(one.journal.membership, logs=logs, former=former)
    return one, Lives(one.ledger, one.roster)


def following(now: Membership, *gone: str, **changes: object) -> Membership:
    brokers = {name: info for name, info in now.brokers.items() if name not in gone}
    return msgspec.structs.replace(now, **{"version": now.version + 1, "brokers": brokers, "former": (), **changes})


def test_a_member_that_goes_ends_its_life_and_one_that_was_joining_has_none_to_end() -> None:
    one, lives = cluster(LONG)
    now = one.journal.membership
    after = lives.after(now, following(now, "b2", "b3"))
    assert after.former == (FormerLife("b2@0", now.version + 1),)
    assert after.logs_version == now.version + 1


def test_a_server_that_began_again_has_ended_its_life() -> None:
    one, lives = cluster(LONG)
    now = one.journal.membership
    again = {**now.brokers, "b1": msgspec.structs.replace(now.brokers["b1"], began=9)}
    assert lives.after(now, following(now, brokers=again)).former == (FormerLife("b1@0", now.version + 1),)


def test_nothing_is_noted_without_logs() -> None:
    one, lives = cluster()
    now = one.journal.membership
    after = lives.after(now, following(now, "b2"))
    assert (after.former, after.logs_version) == ((), 0)


def test_a_life_is_forgotten_when_the_longest_retention_is_over() -> None:
    one, lives = cluster(SHORT, LONG, former=(FormerLife("b9@1", 2),))
    now = one.journal.membership
    for now_s, known in ((0.0, 1), (599.0, 1), (601.0, 0)):
        lives.tick(now_s)
        assert len(lives.after(now, following(now)).former) == known


def test_the_oldest_are_forgotten_when_there_are_too_many() -> None:
    one, lives = cluster(LONG, former=tuple(FormerLife(f"b9@{number}", number) for number in range(FORMER_MAX)))
    now = one.journal.membership
    former = lives.after(now, following(now, "b2")).former
    assert (len(former), former[0].life, former[-1].life) == (FORMER_MAX, "b9@1", "b2@0")
