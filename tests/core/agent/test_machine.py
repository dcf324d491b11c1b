"""The agent machine: each order is one step on its server, answered when the server has answered."""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

import msgspec
import pytest
from hiredis import Reader

from nearcast.core.agent import records as records_module
from nearcast.core.agent.load import UNANSWERED_BYTES_MAX
from nearcast.core.agent.machine import HURRIES_PER_S, HURRY_BURST, Agent, Identity
from nearcast.core.model.journal import Pace
from nearcast.core.model.logs import Log, stream_of
from nearcast.core.model.membership import BrokerInfo, Membership, Ready, ring_of
from nearcast.core.model.names import (
    CLAIM_KEY,
    CONTROLLER_CHANNEL,
    COUNTERS,
    FIRST_USES,
    MEMBERS,
    PATTERNS,
    READY_KEY,
    RECORDS,
    REPORT_STREAM,
    WANTED,
    agent_channel,
    pattern_readiness,
    readiness_channel,
)
from nearcast.core.model.placement import first_use, settled, single
from nearcast.core.model.reports import Report
from nearcast.core.model.settings import DEFAULT_TIMING
from nearcast.core.wire import bus
from nearcast.core.wire.frames import decode_record, encode_record
from nearcast.core.wire.link import command
from nearcast.core.wire.valkey import ValkeyLink

TERM = 3


class Office:
    """An agent between its server and the bus, and a controller's ears on the bus."""

    def __init__(self, rig: Any) -> None:
        self.rig = rig("b1", "store")
        self.rig.leased.clear()
        self.rig.ask("b1", "DEL", READY_KEY, MEMBERS)
        self.agent = Agent(Identity("b1", "redis://b1", "paris"), "redis://store", Random(1))
        self.heard: list[Any] = []
        ears = self.rig.servers["store"].connect(lambda data: None)
        ears.feed(command("HELLO", 3) + command("SUBSCRIBE", CONTROLLER_CHANNEL))
        ears.deliver = self._hear
        self.wired = self.rig.wire(self.agent)
        self.rig.run(0.3)

    def _hear(self, data: bytes) -> None:
        reader = Reader()
        reader.feed(data)
        while (push := reader.gets()) is not False:
            message = bus.decode_for_controller(push[2])
            assert message is not None
            self.heard.append(message)

    def order(self, order: Any) -> list[bus.Answer]:
        """Tell the agent, and return what it answers."""
        self.heard.clear()
        self.rig.ask("store", "PUBLISH", agent_channel("b1", self.agent.agent_id), bus.encode(order))
        return [message for message in self.heard if isinstance(message, bus.Answer)]

    def hello(self) -> bus.Hello:
        self.heard.clear()
        self.rig.run(0.4)
        return next(message for message in reversed(self.heard) if isinstance(message, bus.Hello))

    def on_server(self, *parts: bytes | str | int) -> Any:
        return self.rig.ask("b1", *parts)


@pytest.fixture
def office(rig: Any) -> Office:
    return Office(rig)


PLACED = settled(single(5, "b1", 1), TERM)


def test_a_hello_says_who_and_how_the_server_is(office: Office) -> None:
    hello = office.hello()
    assert (hello.broker, hello.url, hello.site, hello.run_id) == ("b1", "redis://b1", "paris", "run-b1")
    assert (hello.answering, hello.dead, hello.ready) == (True, False, False)
    assert office.hello().beat > hello.beat


def test_a_silent_server_is_said_to_be_silent(office: Office) -> None:
    office.rig.silent.add("b1")
    office.rig.run(2 * DEFAULT_TIMING.heartbeat_s)
    assert not office.hello().answering


def test_a_server_seen_to_end_is_said_at_once(office: Office) -> None:
    office.heard.clear()
    office.rig.silent.add("b1")
    office.agent.server_ended()
    office.rig.run(0.05)
    assert [message.dead for message in office.heard if isinstance(message, bus.Hello)] == [True]


# --- leases


def granted(office: Office) -> int:
    return int(office.on_server("HGET", CLAIM_KEY, "granted") or 0)


def test_every_beat_on_the_server_is_told_and_its_grant_is_noted_there(office: Office) -> None:
    hello = office.hello()
    assert hello.beat == int(office.on_server("HGET", CLAIM_KEY, "beat"))
    office.order(bus.Grant(TERM, hello.beat, "run-b1"))
    assert granted(office) == hello.beat


def test_a_grant_of_an_earlier_run_of_the_server_is_not_noted(office: Office) -> None:
    """Its beats were as high as those of this run, which start over."""
    hello = office.hello()
    office.order(bus.Grant(TERM, hello.beat, "an earlier run"))
    assert granted(office) == 0


def test_a_grant_that_comes_late_takes_nothing_back(office: Office) -> None:
    first, second = office.hello(), office.hello()
    for hello in (second, first):
        office.order(bus.Grant(TERM, hello.beat, "run-b1"))
    assert granted(office) == second.beat


def test_a_client_that_waits_for_a_grant_makes_the_agent_beat_at_once_but_not_without_end(office: Office) -> None:
    office.hello()
    office.heard.clear()
    for _ in range(100):
        office.on_server("PUBLISH", WANTED, "")
    beats = [message.beat for message in office.heard if isinstance(message, bus.Hello)]
    assert len(beats) == HURRY_BURST
    assert beats[-1] == int(office.on_server("HGET", CLAIM_KEY, "beat"))
    for _ in range(20):
        office.on_server("PUBLISH", WANTED, "")
        office.rig.run(0.05)
    assert (
        len([message for message in office.heard if isinstance(message, bus.Hello)]) <= HURRY_BURST + HURRIES_PER_S + 5
    )


def test_clients_that_wait_at_the_same_moment_share_one_beat(office: Office) -> None:
    office.hello()
    office.heard.clear()
    office.wired.deaf.add("b1")
    for _ in range(10):
        office.on_server("PUBLISH", WANTED, "")
    office.wired.deaf.clear()
    office.wired.hear()
    assert len([message for message in office.heard if isinstance(message, bus.Hello)]) <= 2


def test_a_deposed_leader_is_not_obeyed(office: Office) -> None:
    office.order(bus.Install(1, TERM, {"t": PLACED}))
    assert office.order(bus.Install(2, TERM - 1, {"u": PLACED})) == []
    assert office.on_server("HGET", RECORDS, "u") is None
    hello = office.hello()
    office.order(bus.Grant(TERM - 1, hello.beat, "run-b1"))
    assert granted(office) == 0


# --- orders


def test_records_are_installed_and_the_versions_told(office: Office) -> None:
    older = settled(single(4, "b1", 1), TERM)
    (answer,) = office.order(bus.Install(7, TERM, {"t": PLACED, "größe": PLACED}))
    assert answer == bus.Answer("b1", 7, versions={"t": PLACED.version, "größe": PLACED.version})
    (answer,) = office.order(bus.Install(8, TERM, {"t": older}))
    assert answer.versions == {"t": PLACED.version}
    assert decode_record(office.on_server("HGET", RECORDS, "t")) == PLACED
    assert decode_record(office.on_server("HGET", RECORDS, "größe")) == PLACED


def test_the_membership_is_installed_and_only_grows(office: Office) -> None:
    def members(version: int) -> Membership:
        return Membership(version=version, term=TERM, brokers={})

    assert office.order(bus.InstallMembers(1, TERM, members(4)))[0].versions == {"": 4}
    assert office.order(bus.InstallMembers(2, TERM, members(3)))[0].versions == {"": 4}
    assert office.on_server("HGET", MEMBERS, "version") == b"4"


def test_subscribers_are_counted_at_one_moment(office: Office) -> None:
    server = office.rig.servers["b1"]
    attached = [PATTERNS, pattern_readiness(4)]
    for channels in (["t"], ["t", readiness_channel(b"t", 6)], [PATTERNS], attached):
        server.connect(lambda data: None).feed(command("HELLO", 3) + command("SUBSCRIBE", *channels))
    (answer,) = office.order(bus.Count(1, TERM, {"t": 6, "": 4, "nobody": 3}))
    assert answer.counts == {"t": (2, 1), "": (2, 1), "nobody": (0, 0)}


def test_records_that_leave_this_directory_are_collected(office: Office) -> None:
    old, new = ("b1", "b2"), ("b1", "b2", "b3")
    topics = [f"t{number}" for number in range(60)]
    for topic in topics:
        office.on_server("HSET", RECORDS, topic, encode_record(PLACED))
    (answer,) = office.order(bus.Collect(1, TERM, old, new))
    leave = {
        topic
        for topic in topics
        if ring_of(old).owner(topic.encode()) == "b1" and ring_of(new).owner(topic.encode()) != "b1"
    }
    assert leave
    assert answer.records == dict.fromkeys(leave, PLACED)


@pytest.mark.parametrize("members", [4, 3], ids=["closed for them", "another membership"])
def test_topics_that_nobody_uses_end_instead_of_being_collected(office: Office, members: int) -> None:
    office.order(bus.InstallMembers(1, TERM, Membership(version=4, term=TERM, brokers={})))
    for topic in ("placed", "used", "unused"):
        office.on_server(
            "HSET", *((RECORDS, topic, encode_record(PLACED)) if topic == "placed" else (FIRST_USES, topic, 3))
        )
    user = office.rig.servers["b1"].connect(lambda data: None)
    user.feed(command("HELLO", 3) + command("SUBSCRIBE", "nc:c:used"))
    (answer,) = office.order(bus.Collect(2, TERM, ("b1",), ("b2",), members=members))
    left = {"placed", "used"} if members == 4 else {"placed", "used", "unused"}
    assert set(answer.records) == left
    assert {name for name in ("placed", "used", "unused") if office.on_server("HGET", RECORDS, name)} == left
    assert office.on_server("HLEN", FIRST_USES) == 0
    kept = msgspec.structs.replace(first_use(3, "b1"), term=TERM)  # the controller knows of it: it does not end
    assert answer.records["used"] == decode_record(office.on_server("HGET", RECORDS, "used")) == kept


def test_what_can_be_no_first_use_is_not_collected(office: Office) -> None:
    office.order(bus.InstallMembers(1, TERM, Membership(version=4, term=TERM, brokers={})))
    for topic, forged in (("rubbish", "rubbish"), ("late", "5"), (b"\xff", "4"), ("used", "4")):
        office.on_server("HSET", FIRST_USES, topic, forged)
        user = office.rig.servers["b1"].connect(lambda data: None)
        user.feed(command("HELLO", 3) + command("SUBSCRIBE", topic))
    (answer,) = office.order(bus.Collect(2, TERM, ("b1",), ("b2",), members=4))
    assert set(answer.records) == {"used"}


def leaving(office: Office, monkeypatch: pytest.MonkeyPatch, batch: int) -> tuple[bus.Collect, list[str]]:
    """An order to collect, the topics that it is about, and small batches."""
    monkeypatch.setattr(records_module, "BATCH", batch)
    old, new = ("b1",), ("b2",)
    topics = sorted(f"t{number}" for number in range(60))
    for topic in topics:
        office.on_server("HSET", RECORDS, topic, encode_record(PLACED))
    return bus.Collect(1, TERM, old, new), topics


def scans(office: Office, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    seen: list[object] = []
    original = ValkeyLink.find_records

    def find_records(self: ValkeyLink, wanted: Any, then: Any) -> None:
        seen.append(wanted)
        original(self, wanted, then)

    monkeypatch.setattr(ValkeyLink, "find_records", find_records)
    return seen


def test_collected_records_come_in_batches_of_one_scan(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    order, topics = leaving(office, monkeypatch, 25)
    seen = scans(office, monkeypatch)
    batches, after = [], ""
    for number in range(3):
        (answer,) = office.order(msgspec.structs.replace(order, order=number, after=after))
        batches.append(list(answer.records))
        after = max(answer.records)
        assert answer.more is (number < 2)
    assert batches == [topics[:25], topics[25:50], topics[50:]]
    assert len(seen) == 1


def test_an_agent_that_has_forgotten_a_scan_goes_on_with_a_new_one(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, topics = leaving(office, monkeypatch, 25)
    (answer,) = office.order(msgspec.structs.replace(order, after=topics[24]))
    assert (list(answer.records), answer.more) == (topics[25:50], True)


def test_a_new_collection_does_not_trust_an_old_scan(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    order, topics = leaving(office, monkeypatch, 25)
    office.order(order)
    office.on_server("HSET", RECORDS, "a", encode_record(PLACED))
    (answer,) = office.order(msgspec.structs.replace(order, order=2))
    assert list(answer.records) == ["a", *topics[:24]]


def test_an_order_to_collect_that_is_repeated_while_the_scan_goes_on_scans_once(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, topics = leaving(office, monkeypatch, 100)
    seen = scans(office, monkeypatch)
    office.rig.silent.add("b1")
    assert [office.order(msgspec.structs.replace(order, order=number)) for number in (1, 2, 3)] == [[], [], []]
    office.heard.clear()
    office.rig.speak("b1")
    office.rig.run(0.3)
    (answer,) = [message for message in office.heard if isinstance(message, bus.Answer)]
    assert (answer.order, list(answer.records)) == (3, topics)
    assert len(seen) == 1


def test_a_look_up_makes_the_record_of_a_new_topic(office: Office) -> None:
    members = Membership(version=4, term=TERM, brokers={})
    office.order(bus.InstallMembers(1, TERM, members))
    (answer,) = office.order(bus.Lookup(2, TERM, "t", members))
    kept = msgspec.structs.replace(first_use(4, "b1"), term=TERM)  # the controller knows of it: it does not end
    assert answer.records == {"t": kept}
    assert decode_record(office.on_server("HGET", RECORDS, "t")) == kept
    office.order(bus.Install(3, TERM, {"u": PLACED}))
    (answer,) = office.order(bus.Lookup(4, TERM, "u", members))
    assert answer.records == {"u": PLACED}


def test_a_look_up_is_answered_whatever_a_client_has_written(office: Office) -> None:
    members = Membership(version=4, term=TERM, brokers={})
    office.order(bus.InstallMembers(1, TERM, members))
    office.on_server("HSETNX", FIRST_USES, "t", "rubbish")
    (answer,) = office.order(bus.Lookup(2, TERM, "t", members))
    assert answer.records == {"t": msgspec.structs.replace(first_use(4, "b1"), term=TERM)}


def test_a_look_up_with_another_view_of_the_ring_is_not_answered(office: Office) -> None:
    office.order(bus.InstallMembers(1, TERM, Membership(version=4, term=TERM, brokers={})))
    assert office.order(bus.Lookup(2, TERM, "t", Membership(version=5, term=TERM, brokers={}))) == []
    assert office.on_server("HGET", RECORDS, "t") is None


def test_a_reset_cuts_off_clients_and_forgets_everything(office: Office) -> None:
    server = office.rig.servers["b1"]
    client = server.connect(lambda data: None)
    client.feed(command("HELLO", 3, "SETNAME", "nearcast-0000000000000001"))
    stranger = server.connect(lambda data: None)
    office.order(bus.Install(1, TERM, {"t": PLACED}))
    office.on_server("HSET", FIRST_USES, "u", "4")
    office.on_server("SET", "theirs", "1")
    office.order(bus.MarkReady(2, TERM, "run-b1"))
    assert office.order(bus.Reset(3, TERM)) == [bus.Answer("b1", 3)]
    assert [office.on_server("EXISTS", key) for key in (RECORDS, FIRST_USES, READY_KEY, MEMBERS)] == [0, 0, 0, 0]
    assert office.on_server("GET", "theirs") == b"1"
    assert (client.closed, stranger.closed) == (True, False)
    assert not office.hello().ready


def test_nothing_is_done_during_a_reset_which_would_wipe_it(office: Office) -> None:
    """The leader repeats a reset it has no answer to yet, then goes on when the answer to the first one arrives."""
    membership = Membership(version=7, term=TERM, brokers={"b1": BrokerInfo("redis://b1")}, ring=("b1",))
    assert office.order(bus.Reset(3, TERM)) == [bus.Answer("b1", 3)]
    office.rig.silent.add("b1")
    office.order(bus.Reset(4, TERM))
    office.order(bus.InstallMembers(5, TERM, membership))
    office.rig.silent.clear()
    office.heard.clear()
    office.wired.hear()
    answers = [message.order for message in office.heard if isinstance(message, bus.Answer)]
    assert answers == [4], "and the other order is repeated, as it has no answer"
    office.order(bus.InstallMembers(6, TERM, membership))
    assert office.on_server("HGET", MEMBERS, "version") == b"7"


def test_an_order_given_before_a_reset_is_not_carried_out_after_it(office: Office) -> None:
    office.order(bus.Reset(5, TERM))
    assert office.order(bus.Install(4, TERM, {"t": PLACED})) == []
    assert office.order(bus.Install(6, TERM, {"t": PLACED}))


def test_the_ready_key_names_broker_and_run(office: Office) -> None:
    assert office.order(bus.MarkReady(1, TERM, "run-b1")) == [bus.Answer("b1", 1)]
    assert office.on_server("GET", READY_KEY) == msgspec.json.encode(Ready("b1", "run-b1"))
    assert office.hello().ready


def test_an_earlier_run_of_the_server_is_not_marked_ready(office: Office) -> None:
    assert office.order(bus.MarkReady(1, TERM, "run-a")) == []
    assert office.on_server("GET", READY_KEY) is None


def test_a_restarted_agent_finds_its_server_ready(office: Office, rig: Any) -> None:
    office.order(bus.MarkReady(1, TERM, "run-b1"))
    office.wired.cut("server")
    office.rig.run(0.5)
    assert office.hello().ready


def test_an_agent_that_has_not_looked_at_its_server_yet_carries_out_nothing(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log("all", 1, ("*",), 3600.0, 1 << 30)
    brokers = {"b1": BrokerInfo("redis://b1", began=4)}
    members = Membership(version=4, term=TERM, brokers=brokers, logs=(log,), logs_version=4)
    office.order(bus.InstallMembers(1, TERM, members))
    stream = stream_of(log, members.life("b1"))
    again = Agent(Identity("b1", "redis://b1"), "redis://store", Random(2))
    office.wired.cut("server")
    office.rig.wired.remove(office.wired)
    office.agent, office.wired = again, office.rig.wire(again)
    monkeypatch.setattr(again, "_looked", lambda standing, now_s: None)  # the answer takes its time
    office.rig.run(0.5)
    order = bus.Install(7, TERM, {"t": PLACED}, after={log.key: {"b2@3": "5-1"}})
    assert office.order(order) == []
    assert office.on_server("HGET", RECORDS, "t") is None
    monkeypatch.undo()
    office.wired.cut("server")
    office.rig.run(0.5)
    (answer,) = office.order(order)
    assert (answer.life, list(answer.ends)) == ("b1@4", [log.key])
    assert office.on_server("XLEN", stream) == 1


@pytest.mark.parametrize("payload", [b"", b"garbage", b"{}", b'{"type": "Grant"}', b'{"type": "Nobody"}', b"\xff"])
def test_garbage_on_the_bus_is_ignored(office: Office, payload: bytes) -> None:
    office.rig.ask("store", "PUBLISH", agent_channel("b1", office.agent.agent_id), payload)
    assert office.hello().answering


# --- reports


def test_a_report_is_sent_every_second_with_what_clients_counted(office: Office) -> None:
    office.rig.run(1.1)
    office.heard.clear()
    told = b'{"client": 1, "seconds": 1.0, "topics": {"t": {"published": 4}}}'
    office.on_server("PUBLISH", COUNTERS, told)
    office.on_server("PUBLISH", COUNTERS, b"garbage")
    office.rig.run(2.0)
    reports = [message for message in office.heard if isinstance(message, Report)]
    assert [report.broker for report in reports] == ["b1", "b1"]
    assert reports[0].topics["t"].published == 4
    assert reports[0].output_bytes_per_s > 0
    assert office.agent.reporting.meter.dropped == 1


def appended(office: Office) -> list[dict[bytes, bytes]]:
    stream = office.rig.servers["b1"].keys.stream(REPORT_STREAM)
    return [dict(zip(fields[::2], fields[1::2], strict=True)) for _, fields in stream.records]


def test_every_report_is_appended_to_the_stream_under_a_sequence_of_its_own(office: Office) -> None:
    office.heard.clear()
    office.rig.run(3.1)
    records = appended(office)
    reports = [message for message in office.heard if isinstance(message, Report)]
    assert [bus.decode_for_controller(record[b"report"]) for record in records] == reports
    assert [int(record[b"at"]) for record in records] == [int(report.at_s * 1000) for report in reports]
    assert {record[b"broker"] for record in records} == {b"b1"}
    assert len({record[b"sequence"] for record in records}) == len(records) == 3


def test_a_report_without_an_answer_is_appended_again(office: Office) -> None:
    office.rig.run(1.5)
    answered = len(appended(office))
    office.wired.deaf.add("b1")
    assert office.agent.server.link is not None
    office.agent.reporting.log.append(office.agent.server.link, 0.0, b"{}")
    office.rig.run(0.1)
    assert len(appended(office)) == answered + 1
    office.wired.deaf.clear()
    for _ in range(2):  # the second time each has its answer
        office.wired.cut("server")
        office.rig.run(1.1)
    times = list(Counter(record[b"sequence"] for record in appended(office)).values())
    assert times[: answered + 1] == [1] * answered + [2]
    assert set(times[answered + 1 :]) == {1}


def test_a_server_that_refuses_reports_does_not_keep_the_agent_from_its_work(office: Office) -> None:
    office.on_server("DEL", REPORT_STREAM)
    office.on_server("SET", REPORT_STREAM, "not a stream")
    office.rig.run(2.1)
    assert office.agent.reporting.log.dropped == 2
    assert office.hello().answering


def test_reports_without_an_answer_are_kept_within_a_limit(office: Office) -> None:
    office.wired.deaf.add("b1")
    assert office.agent.server.link is not None
    report = b"x" * (UNANSWERED_BYTES_MAX // 4)
    for _ in range(6):
        office.agent.reporting.log.append(office.agent.server.link, 0.0, report)
    assert office.agent.reporting.log.dropped == 2


def test_messages_of_the_bus_survive_the_way_there_and_back() -> None:
    request = bus.MoveTopics("asker.1", {"t": (single(1, "b1", 0).mode, ("b1",))}, Pace.LAZY)
    assert bus.decode_for_controller(bus.encode(request)) == request
    assert bus.decode_for_agent(bus.encode(request)) is None
    state = bus.State("asker.1", problem="no")
    assert bus.decode_state(bus.encode(state)) == state
    assert bus.decode_state(b"{}") is None


# --- what keeps it from working


def test_an_agent_that_no_controller_answers_says_so(office: Office) -> None:
    office.rig.run(2 * DEFAULT_TIMING.dead_s + 1)
    assert "no controller answers at redis://store" in office.agent.problem
    office.order(bus.Grant(TERM, office.hello().beat, office.hello().run_id))
    assert office.agent.problem == ""


def test_a_leader_that_falls_silent_is_a_problem_again(office: Office) -> None:
    office.order(bus.Grant(TERM, office.hello().beat, office.hello().run_id))
    office.rig.run(DEFAULT_TIMING.dead_s)
    assert office.agent.problem == ""
    office.rig.run(2 * DEFAULT_TIMING.dead_s)
    assert "no controller answers" in office.agent.problem
