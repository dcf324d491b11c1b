"""Probes: what is said, whom is asked, and what is believed."""

from __future__ import annotations

import random
import time

import pytest

from nearcast.core.wire.probes import (
    AGAIN_S,
    CALM_EVERY_S,
    DATAGRAM_BYTES,
    EVERY_S,
    FORGET_S,
    HOLD_S,
    LONGEST_S,
    UNANSWERED_MAX,
    Prober,
    answer_to,
    landmarks_of,
    probe,
)


def test_an_answer_is_as_long_as_its_probe() -> None:
    answer = answer_to(probe(7))
    assert answer is not None
    assert len(answer) == len(probe(7)) == DATAGRAM_BYTES


@pytest.mark.parametrize("datagram", [b"", b"x", b"\0" * DATAGRAM_BYTES, probe(7)[:-1], probe(7) + b"x"])
def test_only_probes_are_answered(datagram: bytes) -> None:
    assert answer_to(datagram) is None


def test_an_answer_is_not_answered() -> None:
    answer = answer_to(probe(7))
    assert answer is not None
    assert answer_to(answer) is None, "two agents would go on for ever"


class Network:
    """A prober and brokers at given round trips, in virtual time."""

    def __init__(self, brokers: int = 12, targets: int = 8) -> None:
        self.prober = Prober(random.Random(1), targets)
        self.names = {f"udp://h:{number}": f"b{number}" for number in range(brokers)}
        self.round_trips_s = {name: 0.010 * (number + 1) for number, name in enumerate(self.names.values())}
        self.silent: set[str] = set()
        self.probed: dict[str, int] = dict.fromkeys(self.round_trips_s, 0)
        self.now_s = 100.0
        self._answers: list[tuple[float, bytes]] = []
        self.prober.aim({name: address for address, name in self.names.items()})

    def run(self, seconds: float, tick_s: float = 0.05) -> None:
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            for address, datagram in self.prober.tick(self.now_s):
                name = self.names[address]
                self.probed[name] += 1
                answer = answer_to(datagram)
                if name not in self.silent and answer is not None:
                    self._answers.append((self.now_s + self.round_trips_s[name], answer))
            next_s = self.now_s + tick_s
            for at_s, answer in sorted(one for one in self._answers if one[0] <= next_s):
                self.prober.answered(answer, at_s)
            self._answers = [one for one in self._answers if one[0] > next_s]
            self.now_s = next_s

    @property
    def known(self) -> dict[str, float]:
        return self.prober.round_trips_s


def test_landmarks_and_the_nearest_are_probed_and_the_others_now_and_then() -> None:
    network = Network()
    network.run(60)
    often = {name for name, count in network.probed.items() if count > 15}
    assert often == {*landmarks_of(network.round_trips_s, 4), *sorted(network.round_trips_s, key=nearness(network))[:4]}
    assert all(count > 0 for count in network.probed.values())
    for name, round_trip_s in network.known.items():
        assert round_trip_s == pytest.approx(network.round_trips_s[name], abs=1e-6)


def nearness(network: Network):
    landmarks = landmarks_of(network.round_trips_s, 4)
    return lambda name: (name in landmarks, network.round_trips_s[name])


def test_a_client_that_moves_knows_within_a_round() -> None:
    network = Network(brokers=4)
    network.run(20)
    before = network.prober.version
    network.round_trips_s = {name: 0.150 - one_s for name, one_s in network.round_trips_s.items()}
    network.run(CALM_EVERY_S * 1.5 + 4 * AGAIN_S + 0.6)
    assert network.prober.version > before
    for name, round_trip_s in network.round_trips_s.items():
        assert network.known[name] == pytest.approx(round_trip_s, abs=1e-6)


def test_a_move_is_told_at_once_not_broker_by_broker() -> None:
    network = Network(brokers=3)
    network.run(30)
    before = network.prober.version
    network.round_trips_s = {"b0": 0.300, "b1": 0.200, "b2": 0.010}
    while network.prober.version == before:
        network.run(0.05)
    assert network.known == {name: pytest.approx(one_s) for name, one_s in network.round_trips_s.items()}


def test_an_erratic_broker_keeps_nothing_back_for_long() -> None:
    network = Network(brokers=3)
    network.run(30)
    before = network.prober.version
    network.round_trips_s["b0"] = 0.300
    ends_s = network.now_s + EVERY_S * 1.5 + 3 * AGAIN_S + HOLD_S + 1.0
    while network.prober.version == before:
        assert network.now_s < ends_s
        network.round_trips_s["b1"] = 0.100 if network.round_trips_s["b1"] < 0.05 else 0.020  # erratic
        network.run(0.05)
    assert network.known["b0"] == pytest.approx(0.300)


def test_one_late_answer_changes_nothing() -> None:
    network = Network(brokers=1)
    network.run(20)
    before = network.prober.version
    network.round_trips_s["b0"] = 0.9
    network.run(EVERY_S * 0.9)
    network.round_trips_s["b0"] = 0.010
    network.run(10)
    assert network.prober.version == before
    assert network.known == {"b0": pytest.approx(0.010)}


def test_what_does_not_answer_any_more_is_forgotten() -> None:
    network = Network(brokers=3)
    network.run(10)
    network.silent.add("b1")
    network.run(FORGET_S + 5)
    assert network.known.keys() == {"b0", "b2"}
    network.silent.clear()
    network.run(10)
    assert network.known.keys() == {"b0", "b1", "b2"}


def test_brokers_in_use_are_always_probed() -> None:
    network = Network(brokers=30)
    farthest = "b29"
    network.prober.aim({name: address for address, name in network.names.items()}, used=[farthest])
    network.run(20)
    assert network.probed[farthest] >= 8


def test_brokers_that_are_sought_are_known_soon_and_beside_the_others() -> None:
    network = Network(brokers=30)
    network.run(20)
    others = [name for name in network.names.values() if network.probed[name] < 8]
    sought, before = others[-8:], dict(network.probed)
    network.prober.aim({name: address for address, name in network.names.items()}, sought=[*sought, "unknown"])
    network.run(0.5)
    assert network.known.keys() >= set(sought)
    network.run(20)
    often = {name for name, count in network.probed.items() if count - before[name] >= 4}
    assert often >= set(sought)
    assert len(often) == 8 + len(sought)


def test_a_broker_with_another_address_is_measured_anew() -> None:
    network = Network(brokers=2)
    network.run(10)
    network.prober.aim({"b0": "udp://h:0", "b1": "udp://other:1"})
    network.prober.tick(network.now_s)
    assert network.prober._distances.keys() == {"b0"}


def test_foreign_answers_late_answers_and_garbage_are_ignored() -> None:
    prober = Prober(random.Random(1))
    prober.aim({"b0": "udp://h:0"})
    [(_, datagram)] = prober.tick(1.0)
    answer = answer_to(datagram)
    foreign = answer_to(probe(5))
    assert answer is not None
    assert foreign is not None
    for bad in (b"", b"\xff" * DATAGRAM_BYTES, foreign, datagram):
        prober.answered(bad, 1.1)
    prober.answered(answer, 1.0 + LONGEST_S + 1)
    assert prober.round_trips_s == {}
    prober.answered(answer, 1.1)
    assert prober.round_trips_s == {}, "it was answered already"


def test_unanswered_probes_are_limited() -> None:
    network = Network(brokers=50, targets=50)
    network.silent |= set(network.round_trips_s)
    network.run(60)
    assert len(network.prober._unanswered) <= UNANSWERED_MAX


def test_all_of_many_brokers_are_measured_at_once() -> None:
    network = Network(brokers=600, targets=1000)
    network.round_trips_s = dict.fromkeys(network.round_trips_s, 0.2)
    network.run(2)
    assert len(network.known) == 600


def test_answers_of_many_brokers_take_little_time() -> None:
    """Each once looked at all of them."""
    prober = Prober(random.Random(1), targets=1000)
    prober.aim({f"b{number}": f"udp://h:{number}" for number in range(1000)})
    answers = [answer_to(datagram) for _, datagram in prober.tick(0.0)]
    began_s = time.perf_counter()
    for answer in answers:
        prober.answered(answer or b"", 0.05)
    prober.tick(0.1)
    assert len(prober.round_trips_s) == 1000
    assert time.perf_counter() - began_s < 0.5


def test_one_erratic_broker_does_not_make_us_probe_the_others_much_more() -> None:
    network = Network()
    network.run(20)
    before = dict(network.probed)
    for turn in range(600):
        network.round_trips_s["b0"] = (0.010, 0.060)[turn % 2]
        network.run(0.1)
    count = {name: network.probed[name] - before[name] for name in before}
    assert count["b0"] > 15
    assert max(count[name] for name in count if name != "b0") <= 2.5 * 60 / EVERY_S


def test_whoever_seeks_other_brokers_again_and_again_does_not_make_us_probe_more() -> None:
    network = Network(brokers=72)
    addresses = {name: address for address, name in network.names.items()}
    names = sorted(addresses)
    for turn in range(200):
        sought = names[:32] if turn % 2 else names[32:64]
        network.prober.aim(addresses, sought=sought)
        network.run(0.1)
    most = max(network.probed.values())
    assert most <= 20 / EVERY_S * 1.2 + 4, "three of them to be sure of a new distance"


def test_a_broker_that_is_no_longer_there_is_not_told() -> None:
    network = Network(brokers=3)
    network.run(5)
    network.prober.aim({"b0": "udp://h:0"})
    network.run(0.1)
    assert network.known.keys() == {"b0"}


def test_calm_brokers_are_probed_less_often_and_a_move_is_noticed_soon_all_the_same() -> None:
    network = Network(brokers=8)
    network.run(60)
    before = dict(network.probed)
    network.run(50)
    assert max(network.probed[name] - before[name] for name in before) <= 50 / CALM_EVERY_S * 1.4
    network.round_trips_s = {name: 0.150 - one_s for name, one_s in network.round_trips_s.items()}
    network.run(3.5)
    for name, round_trip_s in network.round_trips_s.items():
        assert network.known[name] == pytest.approx(round_trip_s, abs=0.011)
