"""Coordination and the moves of subscribers alone: who gets which gateway; in waves, each said again until it shows."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from parts import LEAVING, TERM, Surroundings, broker, calls, journal_of

from nearcast.core.controller.distances import Distances
from nearcast.core.controller.effects import Questions
from nearcast.core.controller.gateways import Gateways
from nearcast.core.controller.subscribers import (
    LISTEN_S,
    PROMISES_MAX,
    REQUESTS_MAX,
    SAY_AGAIN_S,
    STEP_S,
    Coordination,
    CoordinationSettings,
    SubscriberMoves,
)
from nearcast.core.model.journal import Journal, LossEntry
from nearcast.core.model.names import GATEWAY_CHANNEL
from nearcast.core.model.planning import (
    Cause,
    MoveSubscriber,
    Reason,
    SubscriberProposal,
    SubscriberSnapshot,
)
from nearcast.core.wire import bus

REASON = Reason(Cause.UNBALANCED, "load", 2.0, 1.0)
AT_ONCE, GIVE_UP_S, SILENCE_S = 10, 8.0, 6.0


def url(name: str) -> str:
    return f"http://{name}"


def report(name: str, *users: str) -> bus.GatewayReport:
    return bus.GatewayReport(name, url(name), online=dict.fromkeys(users, ("k",)), rates={"k": 1.0})


def users(number: int) -> list[str]:
    return [f"u{n:05d}" for n in range(number)]


# --- subscribers that are moving


class Waves:
    """Users at gateway b1; b2 and b3 take them."""

    def __init__(self, *online: str) -> None:
        self.gateways = Gateways(SILENCE_S)
        self.takes = {"b2", "b3"}
        for name, there in (("b1", online), ("b2", ()), ("b3", ())):
            self.gateways.add(report(name, *there), 0.0)
        self.moves = SubscriberMoves(self.gateways, self.takes.__contains__, AT_ONCE, GIVE_UP_S)

    def step(self, now_s: float) -> list[str]:
        """The users whose gateway is told to move them."""
        self.moves.step(now_s)
        said = [user for source, moves in self.moves.outgoing for user in moves]
        self.moves.outgoing.clear()
        return said


def test_subscribers_move_in_waves_and_the_next_wave_waits_for_the_reports() -> None:
    waves, names = Waves(*users(25)), users(25)
    assert all(waves.moves.add(user, "b1", "b2") for user in names)
    assert waves.step(0.0) == names[:AT_ONCE]
    assert waves.moves.on_the_way() == {"b1": AT_ONCE, "b2": AT_ONCE}
    waves.gateways.add(report("b1", *names[4:]), 0.5)
    assert waves.step(0.5) == names[AT_ONCE : AT_ONCE + 4]
    assert len(waves.moves) == 21


def test_a_gateway_is_told_again_each_second_until_the_user_has_gone() -> None:
    waves = Waves("ada")
    waves.moves.add("ada", "b1", "b2")
    said = [waves.step(now_s) for now_s in (0.0, 0.5, SAY_AGAIN_S)]
    assert said == [["ada"], [], ["ada"]]
    waves.gateways.add(report("b1"), 1.5)
    assert waves.step(2 * SAY_AGAIN_S) == []
    assert (len(waves.moves), waves.moves.ended_s, waves.moves.given_up) == (0, 2 * SAY_AGAIN_S, [])


def test_who_does_not_move_in_time_stays() -> None:
    waves = Waves("ada")
    waves.moves.add("ada", "b1", "b2")
    waves.step(0.0)
    waves.step(GIVE_UP_S)
    assert waves.moves.given_up == []
    waves.step(GIVE_UP_S + STEP_S)
    assert (waves.moves.given_up, len(waves.moves)) == (["ada"], 0)


@pytest.mark.parametrize("begun", [False, True])
def test_a_target_that_dies_gets_nobody(begun: bool) -> None:
    waves = Waves("ada")
    waves.moves.add("ada", "b1", "b2")
    if begun:
        waves.step(0.0)
    waves.takes.discard("b2")
    assert waves.step(1.0) == []
    assert len(waves.moves) == 0


@pytest.mark.parametrize(("source", "target"), [("b1", "b1"), ("b1", "b9"), ("b3", "b2")])
def test_a_move_that_makes_no_sense_is_not_planned(source: str, target: str) -> None:
    waves = Waves("ada")
    assert not waves.moves.add("ada", source, target)
    assert len(waves.moves) == 0


def test_a_move_that_waits_may_change_and_one_that_has_begun_may_not() -> None:
    waves = Waves("ada")
    assert waves.moves.add("ada", "b1", "b2")
    assert waves.moves.add("ada", "b1", "b3")
    assert waves.moves.target("ada") == "b3"
    waves.step(0.0)
    assert not waves.moves.add("ada", "b1", "b2")
    assert waves.moves.target("ada") == "b3"
    assert list(waves.moves) == [("ada", ("b1", "b3"))]


def test_many_subscribers_wait_and_few_are_on_the_way() -> None:
    names = users(20_000)
    waves = Waves(*names)
    for user in names:
        waves.moves.add(user, "b1", "b2")
    assert calls(waves.step, 0.0) < 8 * len(names)
    assert sum(waves.moves.on_the_way().values()) == 2 * AT_ONCE
    assert calls(waves.step, STEP_S / 2) < 10, "reports come every two seconds"


# --- coordination


class Balancer:
    name = "test"

    def propose(self, view: SubscriberSnapshot) -> SubscriberProposal:
        raise AssertionError


SETTINGS = CoordinationSettings(
    balancer=Balancer(), balance_s=10.0, silence_s=SILENCE_S, moves_at_once=AT_ONCE, give_up_s=GIVE_UP_S
)


class Coordinating(Surroundings):
    def __init__(self, journal: Journal, settings: CoordinationSettings = SETTINGS) -> None:
        super().__init__(journal)
        self.questions = Questions(TERM)
        nobody: Any = None
        self.distances = Distances(self.office, self.roster, nobody)
        self.coordination = Coordination(
            self.office, self.roster, self.distances, self.questions, settings, rng=Random(1), now_s=0.0
        )

    def report(self, now_s: float, **online: tuple[str, ...]) -> None:
        for name, there in online.items():
            self.coordination.heard(report(name, *there), now_s)

    def where(self, user: str, now_s: float, home: str = "", **round_trips_s: float) -> Any:
        """The answer to a user who asks for its gateway; None if there is none."""
        self.coordination.heard(bus.RequestBroker("me.1", user, home=home, round_trips_s=round_trips_s), now_s)
        answers = self.said()
        return answers[0] if answers else None

    def ask(self, request: Any, now_s: float) -> list[Any]:
        self.coordination.heard(request, now_s)
        return self.said()

    def asked(self, now_s: float) -> Any:
        self.coordination.tick(now_s)
        questions = self.questions.take()
        return questions[0] if questions else None

    def propose(self, asked: Any, now_s: float, *moves: tuple[str, str, str]) -> None:
        proposed = tuple(MoveSubscriber(*move, REASON) for move in moves)
        self.questions.answered(asked.number, SubscriberProposal("test", proposed), now_s)


def coordinating(**online: tuple[str, ...]) -> Coordinating:
    """Two members with gateways that have reported twice."""
    one = Coordinating(journal_of("b1", "b2"))
    for now_s in (0.0, 2.0):
        one.report(now_s, **{"b1": (), "b2": (), **online})
    return one


def test_a_new_leader_answers_nobody_before_it_has_heard_every_gateway_or_waited() -> None:
    one = Coordinating(journal_of("b1", "b2"))
    one.report(0.0, b1=())
    assert one.where("ada", LISTEN_S - 0.1) is None
    assert one.where("ada", LISTEN_S).broker == "b1"
    two = Coordinating(journal_of("b1", "b2"))
    two.report(0.0, b1=(), b2=())
    assert two.where("ada", 0.0) is not None


def test_a_user_that_has_measured_gets_the_nearest_gateway_and_leaves_a_home_that_is_far() -> None:
    one = coordinating(b2=("eve",))
    assert one.where("ada", 2.0, b1=0.08, b2=0.01).broker == "b2"
    assert one.where("ada", 2.1, b1=0.01, b2=0.08).broker == "b1", "it has travelled since it was promised b2"
    assert one.where("bob", 2.0, home="b1", b1=0.08, b2=0.01).broker == "b2"
    assert one.where("cyd", 2.0, home="b1", b1=0.012, b2=0.01).broker == "b1", "not clearly farther"
    assert one.where("eve", 2.0, b1=0.01, b2=0.08).broker == "b2", "it is online there"


def test_a_gateway_that_a_user_has_not_measured_is_estimated_from_the_distances_between_brokers() -> None:
    one = Coordinating(journal_of("b1", "b2", "b3"))
    one.distances.round_trips_s = {"b1": {"b2": 0.08, "b3": 0.07}, "b2": {"b3": 0.01}}
    one.report(0.0, b1=(), b2=(), b3=())
    assert one.where("ada", 2.0, b1=0.08, b2=0.03).broker == "b3", "between 0.02 and 0.04: more likely nearer than b2"
    assert one.where("bob", 2.0, b1=0.01).broker == "b1"
    assert one.where("cyd", 2.0, nobody=0.01).broker == "b1", "in turn, as nothing is known"
    assert one.where("dan", 2.0, nobody=0.01).broker == "b2"
    assert one.where("eve", 2.0, b1=-1.0, b2=1e300).broker == "b3", "impossible ones are not taken"


def test_a_user_gets_the_same_gateway_again_until_it_is_online_elsewhere() -> None:
    one = coordinating()
    first = one.where("ada", 2.0)
    assert (first.broker, first.url) == ("b1", url("b1"))
    assert one.where("ada", 2.1).broker == "b1", "what was promised"
    assert one.where("eve", 2.1).broker == "b2"
    one.report(4.0, b2=("ada",))
    assert one.where("ada", 4.0).broker == "b2"
    assert one.where("bob", 4.0, home="b2").broker == "b2"


def test_promises_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearcast.core.controller.subscribers.PROMISES_MAX", 2)
    assert PROMISES_MAX > 2
    one = coordinating()
    first = [one.where(user, 2.0).broker for user in ("u1", "u2", "u3")]
    assert first == ["b1", "b2", "b1"]
    assert one.where("u1", 2.0).broker == "b2", "the oldest was forgotten"
    assert one.where("u3", 2.0).broker == "b1"


def test_nobody_registers_a_name_while_a_loss_is_not_acknowledged() -> None:
    one = coordinating()
    one.journal.loss = LossEntry(0.0, TERM, "some")
    (refused,) = one.ask(bus.RegisterUser("me.1", "ada"), 2.0)
    assert "no user can register now" in refused.problem
    one.journal.loss = LossEntry(0.0, TERM, "some", acknowledged=True)
    assert one.ask(bus.RegisterUser("me.2", "ada"), 2.0) == [bus.Assignment("me.2")]


def test_the_balancer_is_asked_when_it_is_time_and_its_answer_moves_users_once() -> None:
    one = coordinating(b1=("ada", "bob"))
    assert one.asked(9.0 - 2.0) is None
    one.report(9.0, b1=("ada", "bob"), b2=())
    asked = one.asked(10.0)
    assert asked.decider.name == "balancer test"
    one.report(20.0, b1=("ada", "bob"), b2=())
    assert one.asked(20.5) is None, "it has not answered"
    one.propose(asked, 21.0, ("ada", "b1", "b2"), ("eve", "b1", "b2"))
    ((channel, _),) = one.office.outbox
    assert channel == GATEWAY_CHANNEL + b"b1"
    assert one.said() == [bus.MoveSubscribers(TERM, {"ada": ("b2", url("b2"))})], "eve is not there"
    assert len(one.decisions) == 1
    one.propose(asked, 21.1, ("bob", "b1", "b2"))
    assert one.said() == []


def test_after_moves_every_gateway_reports_before_the_balancer_is_asked_again() -> None:
    one = coordinating(b1=("ada",))
    one.report(9.0, b1=("ada",), b2=())
    one.propose(one.asked(10.0), 10.0, ("ada", "b1", "b2"))
    one.report(11.0, b1=(), b2=("ada",))
    one.report(20.9, b1=())
    one.report(20.9, b2=("ada",))
    assert one.asked(20.95) is None, "balance_s after the last move ended"
    assert one.asked(21.1) is not None


def test_a_silent_gateway_is_forgotten_and_a_move_to_it_ends() -> None:
    one = coordinating(b1=("ada",))
    one.ask(bus.PlaceSubscriber("me.1", "ada", "b2"), 2.0)
    one.report(7.0, b1=("ada",))
    one.said()
    one.coordination.tick(2.1 + SILENCE_S)
    assert "gateway b2 is silent" in one.office.notes[-1]
    assert one.where("ada", 9.0).broker == "b1"
    (state,) = one.ask(bus.ShowSubscribers("me.2"), 9.0)
    assert (state.gateways.keys(), state.moving) == ({"b1"}, {})


def test_subscribers_of_a_leaving_broker_go_to_the_others_in_turn() -> None:
    one = Coordinating(journal_of("b1", "b2", b3=LEAVING))
    one.report(0.0, b1=(), b2=(), b3=tuple(users(4)))
    one.coordination.tick(0.5)
    one.coordination.tick(1.0)
    (order,) = one.said()
    assert [target for target, _ in order.moves.values()] == ["b1", "b2", "b1", "b2"]
    assert one.decisions == ["b3 leaves: its 4 subscribers move"]


def test_a_request_to_move_a_user_waits_for_reports_and_is_then_refused() -> None:
    one = coordinating()
    asked = bus.PlaceSubscriber("me.1", "ada", "b2")
    assert one.ask(asked, 2.0) == []
    assert one.ask(asked, 2.1) == [], "the same again"
    one.coordination.tick(2.0 + LISTEN_S - 0.1)
    assert one.said() == []
    one.coordination.tick(2.0 + LISTEN_S)
    (refused,) = one.said()
    assert "is not online at any gateway" in refused.problem


def test_a_request_to_move_a_user_begins_when_a_report_shows_the_user() -> None:
    one = coordinating()
    one.ask(bus.PlaceSubscriber("me.1", "ada", "b2"), 2.0)
    one.report(3.0, b1=("ada",))
    order, state = one.said()
    assert order.moves == {"ada": ("b2", url("b2"))}
    assert (state.request, state.problem, state.moving) == ("me.1", "", {"ada": ("b1", "b2")})


def test_requests_to_move_users_have_a_limit() -> None:
    one = coordinating()
    for number in range(REQUESTS_MAX):
        one.ask(bus.PlaceSubscriber(f"me.{number}", "ada", "b2"), 2.0)
    (refused,) = one.ask(bus.PlaceSubscriber("me.x", "ada", "b2"), 2.0)
    assert "wait: try again" in refused.problem


def test_a_shuffle_is_answered_when_the_balancer_has_and_again_if_the_answer_was_lost() -> None:
    one = coordinating(b1=("ada",))
    asked_for = bus.ShuffleSubscribers("me.1")
    assert one.ask(asked_for, 2.1) == []
    (refused,) = one.ask(bus.ShuffleSubscribers("me.2"), 2.1)
    assert "try again in a few seconds" in refused.problem
    asked = one.asked(2.2)
    assert asked.view.shuffle
    assert one.ask(asked_for, 2.3) == []
    one.propose(asked, 2.4)
    assert [state.request for state in one.said()] == ["me.1"]
    assert [state.request for state in one.ask(asked_for, 2.5)] == ["me.1"]
    assert one.asked(2.6) is None


def test_a_shuffle_whose_balancer_failed_is_refused() -> None:
    one = coordinating(b1=("ada",))
    one.ask(bus.ShuffleSubscribers("me.1"), 2.1)
    one.questions.answered(one.asked(2.2).number, None, 2.3)
    (refused,) = one.said()
    assert "the balancer failed" in refused.problem


def test_a_member_that_begins_to_leave_takes_nobody() -> None:
    one = coordinating()
    one.ledger.write_broker("b1", broker("b1", LEAVING))
    one.commit()
    assert {one.where(user, 3.0).broker for user in users(4)} == {"b2"}
