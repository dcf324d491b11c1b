"""Quorum links: second connections to brokers, for what must be at several servers before it counts (PROTOCOL "Logs").

WAIT tells how many replicas have everything that a connection has written so far, and holds up whatever comes behind it
on that connection. So it gets a connection of its own, and there is one WAIT at a time, for everything in front of it.
An answer is handed over when a WAIT behind it has found enough replicas. If it has not, it is asked again: nothing ever
counts with fewer.

Answers wait for as long as replicas are missing, and whoever has given up meanwhile has left his behind. So there is a
limit: at that, the connection is opened again, and only what is still needed is asked again.

A quorum link is opened when it is first needed, and ends with the first link to its broker. Both lead to the same run
of the server, so what the first one proves about the lease counts for both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from nearcast.core.model.settings import NEVER_S
from nearcast.core.wire.backend import LinkRefused, Standing

if TYPE_CHECKING:
    from nearcast.core.wire.backend import ClientLink
    from nearcast.core.wire.valkey import ValkeyLink

WAIT_S = 0.2  # how long a server waits for replicas before it says how many there are
QUESTIONS_MAX = 500_000  # without an answer, on one connection: some for each of 100,000 topics
NO_REPLICAS = "it has no replicas: start its agent with --replica"

Then = Callable[[Any, float], None]
Question = Callable[["ClientLink", Then], None]


class QuorumUser(Protocol):
    """Something that asks on a quorum link."""

    def quorum_lost(self, first: ClientLink, now_s: float) -> None:
        """Nothing that was asked will be answered: ask again."""
        ...


class QuorumLink:
    """Takes questions, and hands over their answers once enough replicas have what was written by then."""

    def __init__(self, first: ClientLink, url: str, admission: str) -> None:
        """`admission`: what must stand there, so that only replicas of the broker's life are counted."""
        self.first = first
        self._admission = admission
        self.name = quorum_name(first.broker)
        self.url = url
        self.link: ValkeyLink | None = None
        self.ready = False  # it may be used
        self.connecting = False
        self.retry_at_s = NEVER_S
        self.asked_s: float | None = None  # since when an answer is owed that shows that the server is there
        self.problem = ""
        self.users: dict[QuorumUser, None] = {}
        self._questions: list[tuple[QuorumUser, int, Question, Then]] = []  # until it is ready
        self._asked = Counter[QuorumUser]()  # who waits for how many answers
        self._owed = Counter[int]()  # replicas needed -> how many answers that were not handed over need so many
        self._answers: list[tuple[QuorumUser, int, Then, Any]] = []  # that wait for replicas
        self._waiting = False

    def ask(self, user: QuorumUser, replicas: int, question: Question, then: Then) -> None:
        """Ask something that ends in a write; `then` gets the answer when so many replicas have all of it."""
        self.users[user] = None
        self._asked[user] += 1
        if self.ready:
            self._put(user, replicas, question, then)
        else:
            self._questions.append((user, replicas, question, then))

    def asked_by(self, user: QuorumUser) -> int:
        """How many answers somebody waits for."""
        return self._asked[user]

    @property
    def is_full(self) -> bool:
        return len(self._questions) + self._owed.total() >= QUESTIONS_MAX

    def greeted(self, now_s: float) -> None:
        assert self.link is not None
        self.link.look(self._looked)

    def _looked(self, standing: Standing, now_s: float) -> None:
        if standing.run_id != self.first.run_id:
            raise LinkRefused("the server was restarted")
        self.probe(now_s)

    def probe(self, now_s: float) -> None:
        """Look whether the server's replicas are admitted, if it is not known that they are."""
        if self.link is not None and not self.ready:
            self.asked_s = now_s
            self.link.read_admission(self._admission_read)

    def _admission_read(self, admission: str, now_s: float) -> None:
        self.asked_s = None
        if admission == self._admission:
            self._begin()
        else:
            self.problem = NO_REPLICAS

    def _begin(self) -> None:
        self.ready, self.problem = True, ""
        questions, self._questions = self._questions, []
        for user, replicas, question, then in questions:
            self._put(user, replicas, question, then)

    def _put(self, user: QuorumUser, replicas: int, question: Question, then: Then) -> None:
        assert self.link is not None
        self._owed[replicas] += 1
        question(self.link, partial(self._answered, user, replicas, then))

    def _answered(self, user: QuorumUser, replicas: int, then: Then, answer: Any, now_s: float) -> None:
        self._answers.append((user, replicas, then, answer))

    def take(self, now_s: float) -> bytes:
        """What to write now: what was asked, and a WAIT behind it if there is none on the way."""
        link = self.link
        if link is None:
            return b""
        data = link.take()
        if self._owed and not self._waiting:
            self._waiting, self.asked_s = True, now_s
            link.wait(max(self._owed), WAIT_S, self._waited)
            data += link.take()
        return data

    def _waited(self, found: int | str, now_s: float) -> None:
        """Answers came before this one, so it is about all of them."""
        if isinstance(found, str):
            raise LinkRefused(f"the server does not wait for replicas ({found}): give the user the rights for logs")
        self._waiting, self.asked_s = False, None
        answers, self._answers = self._answers, []
        needed = max((replicas for _, replicas, _, _ in answers), default=0)
        self.problem = f"{found} of the {needed} replicas that must have it are in step" if found < needed else ""
        for user, replicas, then, answer in answers:
            if replicas > found:
                self._answers.append((user, replicas, then, answer))
                continue
            _count_down(self._owed, replicas)
            _count_down(self._asked, user)
            then(answer, now_s)

    def lost(self, now_s: float) -> None:
        """The connection is gone: whoever has asked must ask again."""
        users, self.users = self.users, {}
        self.link, self.ready, self._waiting = None, False, False
        self._questions, self._answers = [], []
        self._owed.clear()
        self._asked.clear()
        for user in users:
            user.quorum_lost(self.first, now_s)


def _count_down(counter: Counter[Any], key: Any) -> None:
    counter[key] -= 1
    if not counter[key]:
        del counter[key]


def quorum_name(broker: str) -> str:
    return f"{broker} quorum"
