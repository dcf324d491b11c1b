"""The backend: a link does what the protocols ask, in order, and nothing else of the core speaks to servers."""

from __future__ import annotations

import ast
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import nearcast.core
from nearcast.core.model.membership import Membership, Ready, encode_membership
from nearcast.core.model.names import CONTROL, FIRST_USES, GRANTS, MEMBERS
from nearcast.core.model.placement import Record, first_use, prepare, settled, single, switch
from nearcast.core.wire.backend import (
    CLIENT_NAMES,
    AgentLink,
    ClientLink,
    Credentials,
    Denied,
    Figures,
    Parts,
    ServerLink,
    Standing,
)
from nearcast.core.wire.lease import Lease
from nearcast.core.wire.scripts import FIRST_USE, READ
from nearcast.core.wire.valkey import BATCH, SCAN_COUNT, ValkeyLink, figures_of
from nearcast.errors import AuthenticationFailed
from nearcast.sim.valkey.server import SimServer

NOW_S = 100.0
HERE = single(5, "b1", 1)
MEMBERSHIP = Membership(version=4, term=2, brokers={}, ring=("b1",))
ELSEWHERE = Membership(version=5, term=2, brokers={}, ring=("b2",))


class Place:
    """A server, and links to it that are settled at once."""

    def __init__(self, **options: Any) -> None:
        self.now_s = NOW_S
        self.server = SimServer("b1", lambda: self.now_s, "run-1", **options)
        self.answers: list[Any] = []
        self._wired: list[tuple[ValkeyLink, Any, list[bytes]]] = []

    def link(self, name: str = "somebody") -> ValkeyLink:
        link, said = ValkeyLink("b1"), []
        self._wired.append((link, self.server.connect(said.append), said))
        link.greet("redis://b1", Credentials(), name, self.note)
        self.settle()
        assert self.answers.pop() is None
        return link

    def note(self, answer: Any, now_s: float = 0.0) -> None:
        self.answers.append(answer)

    def settle(self) -> None:
        while any(link.waiting or said for link, _, said in self._wired):
            for link, session, said in self._wired:
                if link.waiting:
                    session.feed(link.take())
                data, said[:] = b"".join(said), []
                link.feed(data, self.now_s)

    def answer(self, ask: Any, *arguments: Any) -> Any:
        """What one question is answered; a list if not exactly once."""
        self.answers.clear()
        ask(*arguments, self.note)
        self.settle()
        return self.answers[0] if len(self.answers) == 1 else list(self.answers)

    def installed(self, link: ValkeyLink, term: int, records: dict[str, Record], *marks: bytes) -> Any:
        """The versions after an install, and the last entries of the parts s1, s2, ... if they get marks."""
        parts = Parts(b"totals", {b"s%d" % number: mark for number, mark in enumerate(marks, 1)})
        versions, ends = [], []

        def then(found: list[int], last: list[str], now_s: float) -> None:
            versions.extend(found)
            ends.extend(last)

        link.install(term, records, parts, then)
        self.settle()
        return (versions, ends) if marks else versions

    def feed(self, link: ValkeyLink, data: bytes) -> None:
        """Give the server what a link has said."""
        next(session for wired, session, _ in self._wired if wired is link).feed(data)
        self.settle()

    def connections(self) -> list[bool]:
        return [session.closed for _, session, _ in self._wired]


@pytest.fixture
def place() -> Place:
    return Place()


# --- the interface


@pytest.mark.parametrize("protocol", [ServerLink, ClientLink, AgentLink])
def test_a_link_has_everything_a_protocol_names(protocol: type) -> None:
    """That the types agree is proven by mypy, in core/wire/valkey.py."""
    parts = [cls for cls in protocol.__mro__ if cls.__module__ == "nearcast.core.wire.backend"]
    named = {name for cls in parts for name in (*vars(cls), *getattr(cls, "__annotations__", {}))}
    wanted = {name for name in named if not name.startswith("_")}
    assert len(wanted) >= 10
    link = ValkeyLink("b1")
    assert [name for name in sorted(wanted) if not hasattr(link, name)] == []


BACKEND = {"wire.backend", "wire.link", "wire.parts", "wire.replication", "wire.scripts", "wire.valkey"}
ALLOWED = {
    ("agent.replicas", "wire.replication"),  # what it says about replicas
    ("client.side_links", "wire.replication"),
    ("client.side_links", "wire.valkey"),  # makes the other links of clients, which are
    ("client.quorum", "wire.valkey"),
    ("client.holders", "wire.valkey"),
    ("client.links", "wire.valkey"),  # makes the links of clients
    ("wire.uplink", "wire.valkey"),  # makes those of agents and controllers
    ("wire.frames", "wire.link"),  # packs a whole PUBLISH in one call
}


def spoken_with(text: str) -> set[str]:
    """What a module imports that speaks to servers."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name.removeprefix("nearcast.core.") for name in found} & {*BACKEND - {"wire.backend"}, "hiredis"}


def test_nothing_else_of_the_core_speaks_to_servers() -> None:
    folder = Path(nearcast.core.__path__[0])
    modules = {".".join(path.relative_to(folder).with_suffix("").parts): path for path in folder.rglob("*.py")}
    assert set(modules) > BACKEND
    others = {name: path.read_text(encoding="utf-8") for name, path in modules.items() if name not in BACKEND}
    assert {(name, target) for name, text in others.items() for target in spoken_with(text)} == ALLOWED


@pytest.mark.parametrize(
    ("line", "target"),
    [
        ("from nearcast.core.wire.link import Link", "wire.link"),
        ("from nearcast.core.wire import backend, scripts", "wire.scripts"),
        ("import nearcast.core.wire.valkey as servers", "wire.valkey"),
        ("import hiredis", "hiredis"),
        ("def late():\n    from hiredis import Reader", "hiredis"),
    ],
)
def test_who_speaks_to_servers_is_found(line: str, target: str) -> None:
    assert spoken_with(line) == {target}


# --- everybody


def test_a_refused_greeting_says_what_to_do() -> None:
    place = Place(password="secret")
    link, said = ValkeyLink("b1"), []
    session = place.server.connect(said.append)
    link.greet("redis://b1", Credentials("", "wrong"), "x", place.note)
    session.feed(link.take())
    link.feed(b"".join(said), NOW_S)
    (problem,) = place.answers
    assert isinstance(problem, AuthenticationFailed)
    assert "redis://user:password@host:port" in str(problem)


def test_a_barrier_stands_behind_all_that_was_done_before_it(place: Place) -> None:
    listener, other = place.link(), place.link()
    seen: list[object] = []
    listener.control[b"c"] = lambda payload, now_s: seen.append(payload)
    listener.subscribe(b"c")
    place.settle()
    other.tell(b"c", b"before")
    place.settle()
    listener.barrier(lambda now_s: seen.append(now_s))
    place.settle()
    other.tell(b"c", b"after")
    place.settle()
    assert seen == [b"before", NOW_S, b"after"]


def test_a_fence_divides_acknowledgements_and_messages_at_one_point(place: Place) -> None:
    """What another backend must keep: install a record between two publications, and everybody sees it there."""
    publisher, subscriber, agent = place.link(), place.link(), place.link()
    seen: dict[str, list[object]] = {"publisher": [], "subscriber": []}

    class Sink:
        def replied(self, receivers: list[int], now_s: float) -> None:
            seen["publisher"] += ["reply"] * len(receivers)

        def refused(self, error: str, now_s: float) -> None:
            raise AssertionError(error)

        def frames(self, payloads: list[bytes], now_s: float) -> None:
            seen["subscriber"] += payloads

    sink = Sink()
    subscriber.topics[b"t"] = sink
    for name, link in (("publisher", publisher), ("subscriber", subscriber)):
        link.control[CONTROL + b"t"] = lambda payload, now_s, name=name: seen[name].append("fence")
        link.subscribe(CONTROL + b"t")
    subscriber.subscribe(b"t")
    place.settle()
    for payload in (b"1", b"2"):
        publisher.publish([b"*3\r\n$7\r\nPUBLISH\r\n$1\r\nt\r\n$1\r\n%b\r\n" % payload], sink)
    place.settle()
    assert place.installed(agent, 2, {"t": switch(HERE, single(6, "b2", 1), 2, forced=False)}) == [24]
    publisher.publish([b"*3\r\n$7\r\nPUBLISH\r\n$1\r\nt\r\n$1\r\n3\r\n"], sink)
    place.settle()
    assert seen["publisher"] == ["reply", "reply", "fence", "reply"]
    assert seen["subscriber"] == [b"1", b"2", "fence", b"3"]


# --- records and membership


def test_records_are_replaced_by_newer_versions_and_terms_only(place: Place) -> None:
    link = place.link()
    assert place.answer(link.read_record, b"t", MEMBERSHIP) is None
    newer = prepare(HERE, single(6, "b2", 1), 3)
    assert place.installed(link, 3, {"t": newer, "u": settled(HERE, 3)}) == [22, 21]
    assert place.installed(link, 3, {"t": settled(HERE, 3)}) == [22], "an older version is not installed"
    assert place.installed(link, 2, {"t": newer}) == [-1], "a deposed leader installs nothing"
    assert place.answer(link.read_record, b"t", MEMBERSHIP) == newer
    assert place.answer(link.read_record, b"t", ELSEWHERE) == newer


def test_the_membership_grows_and_its_news_are_heard(place: Place) -> None:
    link, heard = place.link(), []
    link.control[MEMBERS] = lambda payload, now_s: heard.append(payload)
    link.subscribe(MEMBERS)
    assert place.answer(link.install_members, MEMBERSHIP) == [4]
    assert place.answer(link.install_members, msgspec.structs.replace(MEMBERSHIP, version=3)) == [4]
    assert heard == [b"4"]
    assert place.answer(link.read_members) == encode_membership(MEMBERSHIP)


def test_a_look_up_is_a_first_use_or_tells_the_newer_membership(place: Place) -> None:
    link = place.link()
    assert place.answer(link.look_up, b"t", 4) is None, "no membership yet"
    place.answer(link.install_members, MEMBERSHIP)
    assert place.answer(link.look_up, b"t", 4) == first_use(4, "b1")
    assert place.answer(link.look_up, b"t", 3) == MEMBERSHIP
    place.answer(link.install_members, msgspec.structs.replace(MEMBERSHIP, version=5))
    assert place.answer(link.look_up, b"t", 5) == first_use(4, "b1"), "first come, first served"
    place.installed(link, 3, {"u": settled(HERE, 3)})
    assert place.answer(link.look_up, b"u", 5) == settled(HERE, 3)


def test_a_first_use_counts_at_the_directory_alone(place: Place) -> None:
    """Any client may write one on any server."""
    link = place.link()
    place.answer(link.install_members, MEMBERSHIP)
    place.answer(link.look_up, b"t", 4)
    assert place.answer(link.read_record, b"t", MEMBERSHIP) == first_use(4, "b1")
    assert place.answer(link.read_record, b"t", ELSEWHERE) is None
    leaving = msgspec.structs.replace(ELSEWHERE, previous_ring=("b1",))
    coming = msgspec.structs.replace(MEMBERSHIP, previous_ring=("b2",))
    assert place.answer(link.read_record, b"t", leaving) == first_use(4, "b1"), "it is not collected yet"
    assert place.answer(link.read_record, b"t", coming) is None
    place.installed(link, 3, {"t": settled(HERE, 3)})
    assert place.answer(link.read_record, b"t", MEMBERSHIP) == settled(HERE, 3)


@pytest.mark.parametrize(
    "forged", [b"", b"5", b"4294967296", b"-1", b"4.0", b"0x4", b"0" * 5000 + b"4", b"{}", b"\xff"]
)
def test_what_a_client_writes_that_can_be_no_first_use_does_not_count(place: Place, forged: bytes) -> None:
    link = place.link()
    place.answer(link.install_members, MEMBERSHIP)
    link.send(None, "HSETNX", FIRST_USES, b"t", forged)
    assert place.answer(link.read_record, b"t", MEMBERSHIP) is None
    refusal = place.answer(link.look_up, b"t", 4)
    assert isinstance(refusal, Denied)
    assert "not a first use" in refusal.text
    assert place.answer(link.find_first_uses, 4, lambda topic: True) == {}
    link.subscribe(b"t")
    assert place.answer(lambda then: link.end_unused(4, [b"t"], then)) == 1, "no matter who holds it"
    assert place.answer(link.look_up, b"t", 4) == first_use(4, "b1")


def test_a_first_use_that_is_kept_becomes_a_record(place: Place) -> None:
    link = place.link()
    place.answer(link.install_members, MEMBERSHIP)
    place.answer(link.look_up, b"t", 4)
    link.send(None, "HSETNX", FIRST_USES, b"\xff", "4")
    found = place.answer(link.find_first_uses, 4, lambda topic: True)
    assert found == {b"t": first_use(4, "b1")}
    assert place.answer(link.find_first_uses, 3, lambda topic: True) == {}
    kept = msgspec.structs.replace(first_use(4, "b1"), term=7)
    changed = {b"t": first_use(3, "b1")}
    assert place.answer(link.keep_first_uses, 7, changed) == {}
    assert place.answer(link.keep_first_uses, 7, found) == {b"t": kept}
    assert place.answer(link.keep_first_uses, 8, found) == {b"t": kept}, "no more than once"
    assert place.answer(link.find_first_uses, 4, lambda topic: True) == {}
    assert place.answer(lambda then: link.end_unused(4, [b"t"], then)) == 0


def test_questions_of_one_turn_travel_together_behind_its_subscriptions(place: Place) -> None:
    link = place.link()
    topics = [b"t%d" % number for number in range(BATCH + 1)]
    place.answer(link.install_members, MEMBERSHIP)
    for topic in topics:
        link.look_up(topic, 4, lambda found, now_s, topic=topic: place.note(topic))
        link.read_record(topic, MEMBERSHIP, place.note)
        link.read_record(topic, ELSEWHERE, place.note)
    link.subscribe(b"t1")
    assert link.unanswered == 3 * len(topics)
    sent = link.take()
    records = b"HMGET\r\n$4\r\nnc:r"
    assert [sent.count(question) for question in (FIRST_USE, READ, records)] == [2, 2, 2]
    assert sent.index(b"SUBSCRIBE") < min(sent.index(question) for question in (FIRST_USE, READ, records))
    place.answers.clear()
    place.feed(link, sent)
    assert place.answers == [*topics, *[None] * len(topics), *[first_use(4, "b1")] * len(topics)]
    assert link.unanswered == 0


def test_a_look_up_that_is_not_allowed_is_told(place: Place) -> None:
    link = ValkeyLink("b1")
    link.look_up(b"t", 4, place.note)
    link.take()
    link.feed(b"-NOPERM no\r\n", NOW_S)
    assert place.answers == [Denied("NOPERM no")]


def test_all_wanted_records_are_found_in_several_steps(place: Place) -> None:
    link = place.link()
    topics = [f"t{number}" for number in range(2 * SCAN_COUNT + 10)]
    place.installed(link, 1, dict.fromkeys(topics, settled(HERE, 1)))
    found: dict[bytes, Record] = place.answer(link.find_records, lambda topic: topic.endswith(b"7"))
    assert found == {topic.encode(): settled(HERE, 1) for topic in topics if topic.endswith("7")}


# --- standing and leases


def test_a_server_says_what_an_agent_has_put_there(place: Place) -> None:
    link = place.link()
    assert place.answer(link.look) == Standing(run_id="run-1", ready=None, membership=None, lease=Lease())
    ready = msgspec.json.encode(Ready("b1", "run-1"))
    place.answer(link.install_members, MEMBERSHIP)
    link.mark_ready(ready, lambda now_s: place.note("marked"))
    link.claim("b1:1", -1, lambda *answer: None)
    link.note_grant(1)
    found = place.answer(link.look)[-1]
    document = encode_membership(MEMBERSHIP)
    assert found == Standing(run_id="run-1", ready=ready, membership=document, lease=Lease(beat=1, granted=1))


def test_beats_and_grants_are_read_at_one_moment(place: Place) -> None:
    agent, client = place.link(), place.link()
    assert place.answer(client.read_lease) == Lease()
    heard: list[bytes] = []
    client.control[GRANTS] = lambda payload, now_s: heard.append(payload)
    client.subscribe(GRANTS)
    for _ in range(3):
        agent.claim("b1:1", -1, lambda *answer: None)
    place.settle()
    assert place.answer(client.read_lease) == Lease(beat=3, granted=0)
    agent.note_grant(2)
    place.settle()
    assert place.answer(client.read_lease) == Lease(beat=3, granted=2)
    assert heard == [b"2"]


def test_starting_over_cuts_off_clients_and_forgets(place: Place) -> None:
    agent = place.link("nc-server")
    place.link(f"{CLIENT_NAMES}01")
    place.link("theirs")
    place.installed(agent, 1, {"t": settled(HERE, 1)})
    place.answer(agent.install_members, MEMBERSHIP)
    place.answer(agent.look_up, b"u", 4)
    agent.begin_anew(partial(place.note, "done"))
    place.settle()
    assert place.answers[-1] == "done"
    assert place.connections() == [False, True, False]
    assert place.answer(agent.read_record, b"t", MEMBERSHIP) is None
    assert place.answer(agent.look).membership is None
    assert place.answer(agent.find_first_uses, 4, lambda topic: True) == {}


# --- load


def test_subscribers_are_counted_at_one_moment(place: Place) -> None:
    links = [place.link() for _ in range(3)]
    for link in links:
        link.subscribe(b"t")
    links[0].subscribe(b"u")
    place.settle()
    assert place.answer(lambda then: links[0].count([b"t", b"u", b"v"], then)) == [3, 1, 0]


def test_the_figures_grow_with_what_is_sent(place: Place) -> None:
    link = place.link()
    before = place.answer(link.observe)
    for _ in range(10):
        link.tell(b"c", b"x" * 1000)
    after = place.answer(link.observe)
    assert after.input_bytes - before.input_bytes > 10_000
    assert after.output_bytes > before.output_bytes
    assert after.connections == 1


def test_figures_that_are_not_told_are_zero() -> None:
    told = b"# Stats\r\ntotal_net_output_bytes:7\r\nused_memory:1K\r\nnonsense\r\n"
    assert figures_of(told) == Figures(output_bytes=7)
    assert figures_of(RuntimeError("NOPERM")) == Figures()
