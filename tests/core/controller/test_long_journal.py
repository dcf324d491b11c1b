"""A journal with very many topics: no input takes a leader longer than a part of its leadership.

What one input costs is counted in calls of functions, which no other program on the machine changes.
"""

from __future__ import annotations

from random import Random

import msgspec
import pytest
from parts import calls

from nearcast.core.controller.leader import Leader, LeaderSettings
from nearcast.core.controller.ledger import Ledger
from nearcast.core.controller.moves import EVACUATED_MAX
from nearcast.core.controller.recovery import Recovery
from nearcast.core.model.counters import TopicCounters
from nearcast.core.model.journal import BrokerEntry, BrokerState, Journal, Known, LossEntry, TopicEntry
from nearcast.core.model.membership import BrokerInfo, Membership
from nearcast.core.model.names import AGENT_CHANNEL
from nearcast.core.model.placement import settled, single
from nearcast.core.model.reports import Report
from nearcast.core.model.settings import DEFAULT_TIMING
from nearcast.core.wire import bus

TOPICS = 60_000
BATCH = 500
BROKERS = ("b1", "b2", "b3")
MEMBERS = Membership(
    version=7,
    term=1,
    brokers={name: BrokerInfo(f"redis://{name}", joined=1) for name in BROKERS},
    ring=BROKERS,
    cluster="ours",
    timers=DEFAULT_TIMING.agreed,
)
AT_ONCE = 150_000  # calls: about 50 ms; a leadership of 1 s is renewed four times


def hello(broker: str) -> bus.Hello:
    known = Known("ours", members=7, term=1, journal=(0, 40))
    url, run_id = f"redis://{broker}", f"run-{broker}"
    return bus.Hello(broker, 1, 1, url, "", run_id, answering=True, ready=True, known=known)


def test_a_lost_journal_is_put_together_a_part_at_a_time() -> None:
    known = Known("ours", members=7, term=1, journal=(0, 40))
    ledger = Ledger(0, Journal(), 2)
    recovery = Recovery(ledger, known, timing=DEFAULT_TIMING, store_url="", wall_offset_s=0.0, now_s=0.0)
    names = {broker: [f"{broker}:{number:06d}" for number in range(TOPICS // 3)] for broker in BROKERS}
    most, now_s = 0, 0.0
    for broker in BROKERS:
        recovery.heard(hello(broker), now_s)
    while not ledger.pending("membership"):
        now_s += 0.05
        assert now_s < 60
        orders = [(_broker(channel), bus.decode_for_agent(payload)) for channel, payload in recovery.outbox]
        recovery.outbox.clear()
        for broker, order in orders:
            assert isinstance(order, bus.Recall)
            answer = told(order, broker, names)
            most = max(most, calls(recovery.heard, answer, now_s))
        most = max(most, calls(recovery.tick, now_s))
    assert most < AT_ONCE, most


def told(order: bus.Recall, broker: str, names: dict[str, list[str]]) -> bus.Answer:
    """What the agent that this order is for has behind the last topic it told."""
    start = names[broker].index(order.after) + 1 if order.after else 0
    batch = names[broker][start : start + BATCH]
    records = {topic: settled(single(6, broker, 5), 1) for topic in batch}
    more = start + BATCH < len(names[broker])
    return bus.Answer(broker, order.order, records=records, more=more, membership=MEMBERS)


def test_all_brokers_get_their_records_back_a_part_at_a_time() -> None:
    loss = LossEntry(0.0, 1, "")
    topics = {f"t{number:06d}": TopicEntry(single(6, BROKERS[number % 3], 5)) for number in range(TOPICS)}
    brokers = {name: BrokerEntry(f"redis://{name}", "", f"run-{name}", BrokerState.MEMBER) for name in BROKERS}
    journal = Journal(MEMBERS, topics, brokers, loss)
    leader = Leader(
        Ledger(50, journal, 1), leader="c1", store_url="", settings=LeaderSettings(dice=Random(1)), now_s=0.0
    )
    for broker in BROKERS:
        leader.heard(hello(broker), 0.0)
    most = most_until_pending(leader, "loss")
    assert most < AT_ONCE, most


def test_the_topics_of_a_dead_broker_are_moved_away_a_part_at_a_time() -> None:
    topics = {f"t{number:06d}": TopicEntry(single(6, "b3", 5)) for number in range(TOPICS)}
    states = {"b1": BrokerState.MEMBER, "b2": BrokerState.MEMBER, "b3": BrokerState.DEAD}
    brokers = {name: BrokerEntry(f"redis://{name}", "", f"run-{name}", state) for name, state in states.items()}
    living = {name: info for name, info in MEMBERS.brokers.items() if name != "b3"}
    membership = msgspec.structs.replace(MEMBERS, brokers=living, ring=tuple(living))
    ledger = Ledger(50, Journal(membership, topics, brokers), 1)
    leader = Leader(ledger, leader="c1", store_url="", settings=LeaderSettings(dice=Random(1)), now_s=0.0)
    now_s, most = 0.0, 0
    for _ in range(20):
        now_s += 0.1
        for broker in living:
            leader.heard(hello(broker), now_s)
        most = max(most, calls(leader.tick, now_s))
        if ledger.commit(now_s) is not None:
            ledger.committed(now_s)
    moving = sum(entry.move is not None for entry in topics.values())
    assert moving == EVACUATED_MAX
    assert most < 3 * AT_ONCE, most


def test_a_ring_is_handed_over_a_part_at_a_time() -> None:
    topics = {f"t{number:06d}": TopicEntry(single(6, BROKERS[number % 3], 5)) for number in range(TOPICS)}
    brokers = {name: BrokerEntry(f"redis://{name}", "", f"run-{name}", BrokerState.MEMBER) for name in BROKERS}
    closed = msgspec.structs.replace(MEMBERS, previous_ring=("b1", "b2"))
    journal = Journal(closed, topics, brokers)
    leader = Leader(
        Ledger(50, journal, 1), leader="c1", store_url="", settings=LeaderSettings(dice=Random(1)), now_s=0.0
    )
    most = most_until_pending(leader, "membership")
    assert most < AT_ONCE, most


def test_looking_at_brokers_costs_no_more_with_many_topics() -> None:
    topics = {f"t{number:06d}": TopicEntry(single(6, "b1", 5)) for number in range(TOPICS)}
    brokers = {name: BrokerEntry(f"redis://{name}", "", f"run-{name}", BrokerState.MEMBER) for name in BROKERS}
    journal = Journal(MEMBERS, topics, brokers)
    leader = Leader(
        Ledger(50, journal, 1), leader="c1", store_url="", settings=LeaderSettings(dice=Random(1)), now_s=0.0
    )
    counted = {topic: TopicCounters(subscribers=1) for topic in list(topics)[:10_000]}
    leader.heard(Report("b1", 0.0, 1.0, 5.0, 0.0, 1, 1, 0.0, 0.0, counted), 0.0)
    assert calls(leader.heard, bus.Show("me.1", brokers_only=True), 0.0) < 1000
    ((_, payload),) = leader.office.outbox
    state = bus.decode_state(payload)
    assert state is not None
    assert set(state.brokers) == set(BROKERS)
    assert state.brokers["b1"].report is not None
    assert state.brokers["b1"].report.output_bytes_per_s == 5.0
    assert len(payload) < 10_000


def test_all_topics_are_shown_a_part_at_a_time() -> None:
    topics = {f"t{number:06d}": TopicEntry(single(6, "b1", 5)) for number in range(100_000)}
    leader = Leader(
        Ledger(50, Journal(MEMBERS, topics), 1),
        leader="c1",
        store_url="",
        settings=LeaderSettings(dice=Random(1)),
        now_s=0.0,
    )
    most, listed, start = 0, [], 0
    while start or not listed:
        most = max(most, calls(leader.heard, bus.Show("me.1", start=start), 0.0))
        ((_, payload),) = leader.office.outbox
        leader.office.outbox.clear()
        part = bus.decode_state(payload)
        assert part is not None
        assert len(part.topics) <= bus.SHOWN_MAX
        assert len(payload) < 500_000
        listed += part.topics
        start = part.next_start
    assert listed == list(topics), "each of them once"
    assert most < AT_ONCE, most


def test_named_topics_are_shown_a_part_at_a_time_too() -> None:
    leader = Leader(
        Ledger(50, Journal(MEMBERS), 1), leader="c1", store_url="", settings=LeaderSettings(dice=Random(1)), now_s=0.0
    )
    names = tuple(f"t{number}" for number in range(bus.SHOWN_MAX + 1))
    for start, listed, following in ((0, names[:-1], bus.SHOWN_MAX), (bus.SHOWN_MAX, names[-1:], 0)):
        leader.heard(bus.Show("me.1", names, start=start), 0.0)
        ((_, payload),) = leader.office.outbox
        leader.office.outbox.clear()
        part = bus.decode_state(payload)
        assert part is not None
        assert (tuple(part.topics), part.next_start) == (listed, following)


@pytest.mark.parametrize("start", [-1, 1 << 63, 1 << 70])
def test_a_part_that_cannot_be_is_not_heard(start: int) -> None:
    assert bus.decode_for_controller(b'{"type":"Show","request":"me.1","start":7}') == bus.Show("me.1", start=7)
    assert bus.decode_for_controller(b'{"type":"Show","request":"me.1","start":%d}' % start) is None


def most_until_pending(leader: Leader, key: str) -> int:
    """Drive a leadership until it writes this entry, with agents that obey; returns what the costliest input cost."""
    most, now_s = 0, 0.0
    while not leader.ledger.pending(key):
        now_s += 0.05
        assert now_s < 60
        for broker in BROKERS:
            leader.heard(hello(broker), now_s)
        most = max(most, calls(leader.tick, now_s))
        for answer in done(leader):
            most = max(most, calls(leader.heard, answer, now_s))
            leader.go_on(now_s)
        if not leader.ledger.pending(key):
            leader.ledger.commit(now_s)  # of what was collected, which is nothing
    return most


def done(leader: Leader) -> list[bus.Answer]:
    """Every agent has carried out what it was told to."""
    told = [(_broker(channel), bus.decode_for_agent(payload)) for channel, payload in leader.office.outbox]
    leader.office.outbox.clear()
    answers = []
    for broker, order in told:
        if isinstance(order, bus.Install | bus.InstallMembers | bus.Collect):
            versions = {"": MEMBERS.version} if isinstance(order, bus.InstallMembers) else {}
            answers.append(bus.Answer(broker, order.order, versions=versions))
    return answers


def _broker(channel: bytes) -> str:
    """The broker that an agent's channel is named after."""
    return channel.removeprefix(AGENT_CHANNEL).rpartition(b":")[0].decode()
