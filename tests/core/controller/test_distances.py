"""What a leader knows of distances, and whom it tells."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from parts import MEMBERS, Surroundings, journal_of

from nearcast.core.controller import distances
from nearcast.core.controller.distances import FORGET_S, SHARE_AGAIN_S, SHARE_S, Distances
from nearcast.core.model.distances import BrokerCoordinate, Candidate, TopicDistances
from nearcast.core.model.journal import TopicEntry
from nearcast.core.model.membership import BrokerInfo, Membership
from nearcast.core.model.placement import single
from nearcast.core.model.reports import Report
from nearcast.core.wire import bus
from nearcast.core.wire.probes import landmarks_of


class Members:
    """Stands for the members: who has said hello, and with which agent."""

    def __init__(self) -> None:
        self.agents = {"b1": 11, "b2": 12}
        self.probes = dict.fromkeys(self.agents, "")

    def agent_of(self, name: str) -> int | None:
        return self.agents.get(name)

    def last_hello(self, name: str) -> bus.Hello | None:
        if name not in self.agents:
            return None
        return bus.Hello(name, 1, 1, f"redis://{name}", "local", "run", True, probes=self.probes[name])

    def next_membership(self, now: Membership, brokers: dict[str, BrokerInfo], ring: tuple[str, ...]) -> Membership:
        return Membership(now.version + 1, now.term, brokers, ring)


class Known(Surroundings):
    def __init__(self, **places: str) -> None:
        topics = {topic: TopicEntry(single(MEMBERS, name, MEMBERS)) for topic, name in places.items()}
        super().__init__(journal_of("b1", "b2", topics=topics))
        self.members = Members()
        members: Any = self.members
        self.distances = Distances(self.office, self.roster, members)

    def report(self, broker: str, now_s: float, **found: Any) -> None:
        self.distances.heard(Report(broker, now_s, 1.0, 0.0, 0.0, 1, 1, 0.0, 0.0, **found), now_s)

    def told(self) -> list[tuple[str, dict[str, dict[str, float]]]]:
        """Who was told since the last look, and what."""
        to = [channel.decode().split(":")[2] for channel, _ in self.office.outbox]
        return list(zip(to, (message.round_trips_s for message in self.said()), strict=True))


def near(broker: str, worst_s: float = 0.01) -> TopicDistances:
    return TopicDistances(Candidate(broker, worst_s / 2, worst_s / 2, worst_s))


def test_only_the_broker_of_a_topic_speaks_for_it() -> None:
    known = Known(t="b1")
    known.report("b1", 1.0, distances={"t": near("b1")})
    known.report("b2", 2.0, distances={"t": near("b2")})
    assert known.distances.of("t") == near("b1")
    known.journal.topics["t"] = TopicEntry(single(MEMBERS + 1, "b2", MEMBERS))
    known.report("b2", 3.0, distances={"t": near("b2")})
    assert known.distances.all() == {"t": near("b2")}


def test_a_topic_that_was_never_placed_is_at_its_directory() -> None:
    known = Known()
    home = known.roster.directory("t")
    assert home is not None
    known.report("b2" if home == "b1" else "b1", 1.0, distances={"t": near("b2" if home == "b1" else "b1")})
    assert known.distances.of("t") is None
    known.report(home, 1.0, distances={"t": near(home)})
    assert known.distances.of("t") == near(home)


def test_agents_are_told_what_has_changed_and_not_all_the_time() -> None:
    known = Known()
    known.distances.tick(1.0)
    assert known.told() == []
    known.report("b1", 1.0, round_trips_s={"b2": 0.04})
    known.distances.tick(1.0)
    rows = {"b1": {"b2": 0.04}}
    assert known.told() == [("b1", rows), ("b2", rows)]
    known.report("b2", 2.0, round_trips_s={"b1": 0.05})
    known.distances.tick(2.0)
    assert known.told() == []
    known.distances.tick(1.0 + SHARE_S)
    assert len(known.told()) == 2
    known.report("b2", 8.0, round_trips_s={"b1": 0.05})
    known.distances.tick(30.0)
    assert known.told() == [], "nothing is new"
    known.members.agents["b2"] = 99
    known.distances.tick(40.0)
    assert len(known.told()) == 2, "an agent was restarted"
    known.distances.tick(41.0 + SHARE_AGAIN_S)
    assert len(known.told()) == 2


def test_impossible_round_trips_are_left_out() -> None:
    known = Known()
    known.report("b1", 1.0, round_trips_s={"b2": 0.1, "b3": 0.1})
    assert known.distances.round_trips_s == {"b1": {"b2": 0.1}}, "there is no b3"
    for lie in (-1.0, 1e9, 0.0, float("nan"), 10.1):
        known.report("b1", 1.0, round_trips_s={"b2": lie})
        assert known.distances.round_trips_s == {"b1": {}}
    known.report("b1", 1.0, round_trips_s={"b2": 5e-324})
    assert known.distances.round_trips_s == {"b1": {"b2": 1e-5}}


def test_what_nobody_repeats_is_forgotten() -> None:
    known = Known(t="b1", u="b1")
    known.report("b1", 1.0, distances={"t": near("b1"), "u": near("b1")}, round_trips_s={"b2": 0.04})
    known.report("b1", 20.0, distances={"u": near("b1")}, round_trips_s={"b2": 0.05})
    known.distances.tick(2.0 + FORGET_S)
    assert known.distances.all().keys() == {"u"}


def test_it_is_forgotten_although_there_is_nothing_to_tell_agents() -> None:
    known = Known(t="b1")
    known.report("b1", 1.0, distances={"t": msgspec.structs.replace(near("b1"), measuring=True)})
    known.distances.tick(1.0)
    assert known.distances.measuring() == {"t"}
    known.distances.tick(2.0 + FORGET_S)
    assert known.distances.measuring() == set(), "its agent has died: it must not settle for ever"
    assert known.distances.all() == {}


def test_a_lone_broker_has_nobody_to_tell_and_forgets_topics_too() -> None:
    known = Known(t="b1")
    known.report("b1", 1.0, distances={"t": near("b1")})
    known.distances.tick(1.0)
    known.distances.tick(2.0 + FORGET_S)
    assert known.distances.all() == {}


def test_agents_are_told_little_by_little_if_there_is_much_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distances, "PAIRS_PER_S", 1.0)
    known = Known()
    known.report("b1", 1.0, round_trips_s={"b2": 0.04})
    known.report("b2", 1.0, round_trips_s={"b1": 0.04})
    known.distances.tick(1.0)
    assert [name for name, _ in known.told()] == ["b1"]
    known.distances.tick(2.0)
    assert known.told() == []
    known.distances.tick(4.0)
    assert [name for name, _ in known.told()] == ["b2"]


def test_of_very_many_brokers_some_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distances, "BROKERS_MAX", 1)
    known = Known()
    known.report("b1", 1.0, round_trips_s={"b2": 0.04})
    known.report("b2", 1.0, round_trips_s={"b1": 0.04})
    known.distances.tick(1.0)
    [some] = landmarks_of(("b1", "b2"), 1)
    assert known.told() == [("b1", {some: {}}), ("b2", {some: {}})]


def test_where_agents_answer_probes_becomes_known_with_the_membership() -> None:
    known = Known()
    known.distances.tick(1.0)
    assert known.ledger.membership() is known.journal.membership
    known.members.probes["b2"] = "udp://h:1"
    known.distances.tick(2.0)
    assert known.ledger.membership().brokers["b2"].probes == "udp://h:1"
    assert known.ledger.membership().brokers["b1"].probes == ""


def test_coordinates_reach_agents_and_policies_if_they_are_possible() -> None:
    known = Known()
    known.distances.tick(1.0)
    here = BrokerCoordinate((0.01, 0.02, 0.001), 0.3)
    known.report("b1", 1.0, round_trips_s={"b2": 0.01}, coordinate=here)
    known.report("b2", 1.0, round_trips_s={"b1": 0.01}, coordinate=BrokerCoordinate((float("nan"), 0.1), 0.1))
    assert known.distances.coordinates == {"b1": here}
    known.distances.tick(1.0 + SHARE_S)
    assert [message.coordinates for message in known.said()] == [{"b1": here}] * 2
