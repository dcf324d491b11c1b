"""Coordination: gateways that report, users that get a gateway, subscribers that are moved in waves.

The gateways are played here: they report and obey over the bus, a store's server in memory. All else is the machine.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hiredis import Reader

from nearcast.core.controller.gateways import AssignmentRule
from nearcast.core.controller.subscribers import LISTEN_S, CoordinationSettings
from nearcast.core.model.names import ANSWER_CHANNEL, CONTROLLER_CHANNEL, GATEWAY_CHANNEL
from nearcast.core.model.planning import (
    Cause,
    MoveSubscriber,
    Reason,
    SubscriberProposal,
    SubscriberSnapshot,
    mean_rates,
)
from nearcast.core.wire import bus
from nearcast.core.wire.bus import REPORT_S
from nearcast.core.wire.link import command
from nearcast.errors import UsageError

REASON = Reason(Cause.UNBALANCED, "cov", 0.4, 0.15)
POSITIONS = {"b1": (48.2, 16.4), "b2": (33.7, -117.8), "b3": (-36.8, 174.8)}  # Vienna, Irvine, Auckland
NAMES = ("b1", "b2", "b3")


class ToBrokerThree:
    """A balancer that sends everybody to b3."""

    name = "test"

    def propose(self, snapshot: SubscriberSnapshot) -> SubscriberProposal:
        moves = tuple(
            MoveSubscriber(user, gateway, "b3", REASON)
            for gateway, online in snapshot.online.items()
            for user in online
            if gateway != "b3"
        )
        return SubscriberProposal(self.name, moves, 1.2, 0.1)


class Gateways:
    """Three of them on a cluster: who is online at each, what they were told, and whether their users go."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.online: dict[str, dict[str, tuple[str, ...]]] = {name: {} for name in NAMES}
        self.rates: dict[str, float] = {}
        self.silent: set[str] = set()
        self.obedient = True
        self.orders: list[tuple[float, str, dict[str, tuple[str, str]]]] = []
        self.answers: dict[str, Any] = {}
        self.most_on_the_way = 0
        self._reader = Reader()
        self._session = cluster.rig.servers["store"].connect(self._reader.feed)
        channels = [GATEWAY_CHANNEL + name.encode() for name in NAMES]
        self._session.feed(command("HELLO", 3) + command("SUBSCRIBE", ANSWER_CHANNEL + b"me", *channels))
        self._next_s = 0.0
        self._asked = 0

    def run(self, seconds: float) -> None:
        rig = self.cluster.rig
        for _ in range(round(seconds / 0.05)):
            self.cluster.run(0.05)
            self._listen()
            if rig.now_s >= self._next_s:
                self._next_s = rig.now_s + REPORT_S
                self.report()

    def report(self) -> None:
        for name in NAMES:
            if name not in self.silent:
                self._publish(
                    bus.GatewayReport(name, f"http://{name}", "x", *POSITIONS[name], self.online[name], self.rates)
                )

    def ask(self, kind: Any, *arguments: Any, patience_s: float = 3.0) -> Any:
        """Ask as somebody else, and wait for the answer, which may stay away."""
        self._asked += 1
        request = f"me.{self._asked}"
        self._publish(kind(request, *arguments))
        for _ in range(round(patience_s / 0.05)):
            self._listen()
            if request in self.answers:
                return self.answers[request]
            self.run(0.05)
        return None

    def assigned(self, user: str, *arguments: Any) -> str:
        answer = self.ask(bus.RequestBroker, user, *arguments)
        assert answer.problem == ""
        assert answer.url == f"http://{answer.broker}"
        return answer.broker

    def _publish(self, message: Any) -> None:
        self.cluster.rig.ask("store", "PUBLISH", CONTROLLER_CHANNEL, bus.encode(message))

    def _listen(self) -> None:
        while (push := self._reader.gets()) is not False:
            if not isinstance(push, list) or push[0] != b"message":
                continue
            channel, payload = push[1], push[2]
            if channel == ANSWER_CHANNEL + b"me":
                answer = bus.decode_assignment(payload) or bus.decode_state(payload)
                assert answer is not None
                self.answers[answer.request] = answer
            else:
                self._ordered(channel.removeprefix(GATEWAY_CHANNEL).decode(), payload)

    def _ordered(self, broker: str, payload: bytes) -> None:
        order = bus.decode_for_gateway(payload)
        assert order is not None
        self.orders.append((self.cluster.rig.now_s, broker, order.moves))
        moving = self.cluster.leader.leading.coordination._moves.on_the_way()
        self.most_on_the_way = max(self.most_on_the_way, *moving.values())
        for user, (target, url) in order.moves.items():
            assert url == f"http://{target}"
            if self.obedient and user in self.online[broker]:
                self.online[target][user] = self.online[broker].pop(user)

    def texts(self) -> list[str]:
        return [decision.text for decision in self.cluster.leader.leading.office.decisions]


def gateways_of(cluster_of: Any, **settings: Any) -> Gateways:
    cluster = cluster_of(*NAMES, coordinating=CoordinationSettings(**settings))
    cluster.run(3.0)
    gateways = Gateways(cluster)
    gateways.run(0.1)
    return gateways


def balanced(gateways: Gateways, seconds: float = 15.0) -> Any:
    """The next question to the balancer."""
    for _ in range(round(seconds / 0.05)):
        gateways.run(0.05)
        if gateways.cluster.leader.questions:
            return gateways.cluster.leader.questions.pop()
    return None


def answer(gateways: Gateways, asked: Any) -> None:
    gateways.cluster.leader.answered(asked.number, asked.decide(), gateways.cluster.rig.now_s)


@pytest.fixture
def gateways(cluster_of: Any) -> Gateways:
    return gateways_of(cluster_of, balancer=ToBrokerThree(), balance_s=5.0, moves_at_once=4, give_up_s=8.0)


# --- users


def test_names_are_checked(gateways: Gateways) -> None:
    assert gateways.ask(bus.RegisterUser, "ada@example.com").problem == ""
    for bad in ("", "a b", "a:b", "x" * 129):
        assert "user name" in gateways.ask(bus.RegisterUser, bad).problem
        assert "user name" in gateways.ask(bus.RequestBroker, bad).problem


def test_the_nearest_gateway_over_ground(gateways: Gateways) -> None:
    assert gateways.assigned("in.graz", 47.1, 15.4) == "b1"
    assert gateways.assigned("in.san.diego", 32.7, -117.2) == "b2"
    assert (
        gateways.assigned("in.apia", -13.8, -171.8) == "b3"
    )  # beyond the date line: in degrees of longitude b2 were nearer


def test_who_does_not_say_where_it_is_gets_one_after_the_other(gateways: Gateways) -> None:
    assert [gateways.assigned(f"u{number}") for number in range(4)] == ["b1", "b2", "b3", "b1"]


def test_at_random_with_the_controllers_dice(cluster_of: Any) -> None:
    runs = []
    for _ in range(2):
        gateways = gateways_of(cluster_of, placement=AssignmentRule.RND)
        runs.append([gateways.assigned(f"u{number}") for number in range(12)])
    assert runs[0] == runs[1]
    assert set(runs[0]) == set(NAMES)


def test_the_least_loaded_counts_shared_subscriptions_once_on_the_way_in(cluster_of: Any) -> None:
    gateways = gateways_of(cluster_of, placement=AssignmentRule.LL)
    gateways.rates = {"k1": 100.0, "k2": 100.0}
    gateways.online["b1"] = {"a": ("k1",), "b": ("k2",)}  # in 200, out 200
    gateways.online["b2"] = {"c": ("k1",), "d": ("k1",)}  # in 100, out 200
    gateways.online["b3"] = {"e": ("k1", "k2"), "f": ("k1",)}  # in 200, out 300
    gateways.report()
    assert gateways.assigned("new") == "b2"


def test_who_is_online_keeps_its_gateway_and_so_does_who_has_a_home_or_a_promise(gateways: Gateways) -> None:
    gateways.online["b2"]["ada"] = ()
    gateways.report()
    assert gateways.assigned("ada", 48.2, 16.4) == "b2"
    assert gateways.assigned("ben", 48.2, 16.4, "b3") == "b3"
    assert gateways.assigned("cyd", 48.2, 16.4) == "b1"
    assert gateways.assigned("cyd", -36.8, 174.8) == "b1"  # asked twice, perhaps because the answer was lost


def test_a_gateway_that_is_silent_takes_nobody_and_is_forgotten(gateways: Gateways) -> None:
    gateways.online["b2"]["ada"] = ()
    gateways.report()
    gateways.silent.add("b2")
    gateways.run(3 * REPORT_S + 0.5)
    assert gateways.assigned("ada", 33.7, -117.8, "b2") != "b2"
    assert set(gateways.ask(bus.ShowSubscribers).gateways) == {"b1", "b3"}


def test_only_gateways_of_members_take_subscribers(gateways: Gateways) -> None:
    stranger = bus.GatewayReport("b9", "http://b9", "x", 0.0, 0.0)
    gateways._publish(stranger)
    assert gateways.assigned("u", 0.0, 0.0) != "b9"
    assert not gateways.ask(bus.ShowSubscribers).gateways["b9"].takes


def test_without_a_gateway_the_answer_says_what_to_do(cluster_of: Any) -> None:
    gateways = gateways_of(cluster_of)
    gateways.silent = set(NAMES)
    gateways.run(3 * REPORT_S + 0.5)
    assert "start agents with a gateway" in gateways.ask(bus.RequestBroker, "ada").problem


def test_a_new_leader_listens_before_it_answers(cluster_of: Any) -> None:
    """It must not send a user away from where it is, only because it has not heard of it yet."""
    cluster = cluster_of(*NAMES, coordinating=CoordinationSettings(placement=AssignmentRule.RR))
    cluster.run(1.0)
    gateways = Gateways(cluster)
    gateways.silent = {"b3"}
    gateways.online["b3"]["ada"] = ()
    assert gateways.ask(bus.RequestBroker, "ada", patience_s=1.0) is None
    gateways.silent.clear()
    gateways.report()
    assert gateways.assigned("ada") == "b3"  # every member's gateway has reported: no need to wait longer


def test_a_new_leader_does_not_wait_for_brokers_without_a_gateway(cluster_of: Any) -> None:
    cluster = cluster_of(*NAMES, coordinating=CoordinationSettings())
    cluster.run(1.0)
    gateways = Gateways(cluster)
    gateways.silent = {"b2"}
    gateways.run(LISTEN_S)
    assert gateways.assigned("ada") == "b1"


# --- balancing


def test_the_balancer_is_asked_when_it_is_time_and_sees_who_is_online(gateways: Gateways) -> None:
    gateways.online["b1"]["ada"] = ("k1", "k2")
    gateways.rates = {"k1": 10.0}
    gateways.report()
    gateways.rates = {"k1": 30.0, "k2": 5.0}
    gateways.report()
    asked = balanced(gateways)
    assert asked.view.online == {"b1": {"ada": ("k1", "k2")}, "b2": {}, "b3": {}}
    assert 10.0 < asked.view.mean_rates()["k1"] < 30.0  # a moving average
    assert asked.view.mean_rates()["k2"] == 5.0  # who does not mention it says nothing about it
    assert balanced(gateways) is None  # one question at a time
    answer(gateways, asked)


def test_subscribers_move_in_waves_and_the_decision_is_written_down(gateways: Gateways) -> None:
    gateways.online["b1"] = {f"u{number:02d}": () for number in range(20)}
    gateways.online["b2"] = {f"v{number:02d}": () for number in range(10)}
    answer(gateways, balanced(gateways))
    assert gateways.texts()[-1] == (
        "test: subscribers move, 20 from b1 to b3, 10 from b2 to b3; coefficient of variation 1.200 -> 0.100 "
        "(unbalanced: cov 0.4, threshold 0.15)"
    )
    gateways.run(2.0)
    assert len(gateways.online["b3"]) <= 8  # two waves at most
    gateways.run(20.0)
    assert len(gateways.online["b3"]) == 30
    assert gateways.most_on_the_way == 4
    assert gateways.ask(bus.ShowSubscribers).moving == {}


def test_while_subscribers_move_nobody_is_asked_and_after_it_reports_come_first(gateways: Gateways) -> None:
    gateways.online["b1"] = {"ada": ()}
    answer(gateways, balanced(gateways))
    gateways.obedient = False
    assert balanced(gateways, 6.0) is None
    gateways.obedient = True
    assert balanced(gateways) is not None


def test_an_order_is_said_again_each_second_and_then_given_up(gateways: Gateways) -> None:
    gateways.obedient = False
    gateways.online["b1"] = {"ada": ()}
    answer(gateways, balanced(gateways))
    gateways.run(9.0)
    times = [at_s for at_s, _, _ in gateways.orders]
    assert 7 <= len(times) <= 9
    assert all(0.9 < later - earlier < 1.3 for earlier, later in pairwise(times))
    assert any("1 subscribers did not move in 8 s" in note for note in gateways.cluster.leader.notes)
    assert gateways.ask(bus.ShowSubscribers).moving == {}


def test_a_user_on_its_way_is_sent_to_its_target(gateways: Gateways) -> None:
    gateways.obedient = False
    gateways.online["b1"] = {"ada": ()}
    answer(gateways, balanced(gateways))
    assert gateways.assigned("ada") == "b3"


def test_a_user_at_both_is_still_moving_and_one_at_none_has_gone(gateways: Gateways) -> None:
    gateways.obedient = False
    gateways.online["b1"] = {"ada": (), "ben": ()}
    answer(gateways, balanced(gateways))
    gateways.run(0.5)
    gateways.online["b3"]["ada"] = ()
    del gateways.online["b1"]["ben"]
    gateways.report()
    gateways.run(0.5)
    assert gateways.ask(bus.ShowSubscribers).moving == {"ada": ("b1", "b3")}


def test_what_has_changed_since_the_question_is_not_moved(gateways: Gateways) -> None:
    gateways.online["b1"] = {"ada": (), "ben": ()}
    asked = balanced(gateways)
    del gateways.online["b1"]["ada"]
    gateways.report()
    answer(gateways, asked)
    gateways.run(1.0)
    assert [moves for _, _, moves in gateways.orders] == [{"ben": ("b3", "http://b3")}]


def test_a_target_that_falls_silent_gets_nobody(gateways: Gateways) -> None:
    gateways.online["b1"] = {"ada": ()}
    asked = balanced(gateways)
    gateways.silent.add("b3")
    gateways.run(3 * REPORT_S + 0.5)
    answer(gateways, asked)
    gateways.run(2.0)
    assert gateways.orders == []


def test_an_answer_to_another_question_or_none_changes_nothing(gateways: Gateways) -> None:
    gateways.online["b1"] = {"ada": ()}
    asked = balanced(gateways)
    gateways.cluster.leader.answered(asked.number - 1, ToBrokerThree().propose(asked.view), gateways.cluster.rig.now_s)
    gateways.cluster.leader.answered(asked.number, None, gateways.cluster.rig.now_s)
    gateways.run(1.0)
    assert gateways.orders == []
    assert balanced(gateways) is not None  # one that failed is asked again


def test_without_a_balancer_or_without_gateways_nobody_is_asked(cluster_of: Any) -> None:
    assert balanced(gateways_of(cluster_of)) is None
    gateways = gateways_of(cluster_of, balancer=ToBrokerThree(), balance_s=1.0)
    gateways.silent = set(NAMES)
    gateways.run(7.0)
    assert balanced(gateways, 3.0) is None


def test_subscribers_of_a_broker_that_leaves_go_to_the_others(gateways: Gateways) -> None:
    gateways.online["b2"] = {f"u{number}": () for number in range(6)}
    gateways.report()
    gateways.cluster.leader.leading.heard(bus.Drain("me.x", "b2"), gateways.cluster.rig.now_s)
    gateways.run(12.0)
    assert gateways.online["b2"] == {}
    assert len(gateways.online["b1"]) == len(gateways.online["b3"]) == 3
    assert "b2 leaves: its 6 subscribers move" in gateways.texts()


def test_the_leader_after_it_learns_everything_from_reports(cluster_of: Any) -> None:
    cluster = cluster_of(
        *NAMES, controllers=2, coordinating=CoordinationSettings(balancer=ToBrokerThree(), balance_s=5.0)
    )
    cluster.run(3.0)
    gateways = Gateways(cluster)
    gateways.online["b1"] = {"ada": ("k1",)}
    gateways.rates = {"k1": 7.0}
    gateways.run(3.0)
    first = cluster.leader
    cluster.stopped.add(first)
    for wired in cluster.rig.wired:
        if wired.machine is first:
            wired.cut("bus")
            cluster.rig.wired.remove(wired)
            break
    gateways.run(3.0)
    assert cluster.leader is not first
    gateways.run(LISTEN_S)
    assert gateways.assigned("ada") == "b1"
    asked = balanced(gateways)
    assert asked.view.online["b1"] == {"ada": ("k1",)}
    answer(gateways, asked)
    gateways.run(3.0)
    assert "ada" in gateways.online["b3"]


# --- people


def test_a_person_moves_a_user(gateways: Gateways) -> None:
    gateways.online["b1"] = {"ada": ("k1",)}
    gateways.report()
    state = gateways.ask(bus.PlaceSubscriber, "ada", "b2")
    assert state.moving == {"ada": ("b1", "b2")}
    gateways.run(2.5)
    state = gateways.ask(bus.ShowSubscribers, ("ada", "nobody"))
    assert (state.assignments, state.moving) == ({"ada": "b2"}, {})
    assert state.gateways["b2"].subscribers == state.gateways["b2"].frontend == 1
    assert "ada: b1 -> b2 (as asked)" in gateways.texts()


def test_a_user_who_logged_in_after_the_last_report_can_be_moved(cluster_of: Any) -> None:
    gateways = gateways_of(cluster_of)
    gateways.run(REPORT_S)
    gateways.online["b1"]["ada"] = ("k1",)  # of which the controller hears within two seconds
    state = gateways.ask(bus.PlaceSubscriber, "ada", "b2")
    assert state.problem == ""
    gateways.run(REPORT_S + 0.5)
    assert "ada" in gateways.online["b2"]


def test_a_leader_without_reports_waits_for_them_before_it_refuses_to_move_a_user(cluster_of: Any) -> None:
    gateways = gateways_of(cluster_of)
    gateways.online["b1"]["ada"] = ("k1",)
    gateways.silent = set(NAMES)
    gateways.run(10.0)  # for the controller all gateways are gone
    assert gateways.ask(bus.PlaceSubscriber, "ada", "b2", patience_s=REPORT_S) is None
    gateways.silent = set()
    assert gateways.ask(bus.PlaceSubscriber, "ada", "b2").problem == ""


@pytest.mark.parametrize(
    ("user", "broker", "problem"),
    [("nobody", "b2", "not online"), ("ada", "b9", "choose from: b1, b2, b3")],
)
def test_a_move_that_cannot_be_is_refused(gateways: Gateways, user: str, broker: str, problem: str) -> None:
    gateways.online["b1"] = {"ada": ()}
    gateways.report()
    assert problem in gateways.ask(bus.PlaceSubscriber, user, broker, patience_s=LISTEN_S + 0.5).problem


def test_a_shuffle_is_asked_for_at_once_and_answered_when_it_is_planned(gateways: Gateways) -> None:
    gateways.online["b1"] = {"ada": ()}
    usual = balanced(gateways)
    leader, now_s = gateways.cluster.leader.leading, gateways.cluster.rig.now_s
    for _ in range(2):
        leader.heard(bus.ShuffleSubscribers("me.s"), now_s)  # asked again, the answer has not come yet
    assert balanced(gateways, 0.2) is None  # one question at a time
    gateways.cluster.leader.answered(usual.number, SubscriberProposal("test"), gateways.cluster.rig.now_s)
    asked = balanced(gateways, 0.2)
    assert asked.view.shuffle
    assert "me.s" not in gateways.answers
    answer(gateways, asked)
    gateways.run(0.2)
    assert gateways.answers["me.s"].moving == {"ada": ("b1", "b3")}
    assert "are moving" in gateways.ask(bus.ShuffleSubscribers).problem
    gateways.run(4.0)
    leader.heard(bus.ShuffleSubscribers("me.s"), gateways.cluster.rig.now_s)  # late: it has been answered
    asked = balanced(gateways, 10.0)
    assert not asked.view.shuffle


def test_a_shuffle_needs_a_balancer(cluster_of: Any) -> None:
    assert "--balance ldm" in gateways_of(cluster_of).ask(bus.ShuffleSubscribers).problem


# --- values


def test_settings_that_make_no_sense_are_refused() -> None:
    for wrong in ({"balance_s": 0.0}, {"silence_s": 1.0}, {"moves_at_once": 0}, {"give_up_s": 1.0}):
        with pytest.raises(UsageError, match="coordination needs"):
            CoordinationSettings(**wrong)


def test_the_mean_of_rates_is_over_those_who_mention_them() -> None:
    assert mean_rates([{"a": 1.0, "b": 4.0}, {"a": 3.0}, {}]) == {"a": 2.0, "b": 4.0}


def test_a_decision_about_many_gateways_is_one_line() -> None:
    moves = tuple(MoveSubscriber(f"u{number}", f"b{number}", "b0", REASON) for number in range(1, 9))
    assert "3 between others; coefficient" in str(SubscriberProposal("test", moves))
    assert "no subscriber moves" in str(SubscriberProposal("test"))
