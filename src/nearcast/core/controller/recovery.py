"""Recovery: a leader whose store has lost its data asks the brokers what they have, and rewrites the journal.

During a recovery no lease is granted and nothing moves: acknowledgements pause. It ends when every broker that the
newest membership names has reported everything it has; or T_dead after the first has, when no client counts on a broker
that was not heard. Those count as given up. If all are heard and nothing was moving, clients notice only the pause
(`rebuilding.py`).

Everything else the store held is gone: users' registrations, and data not yet in datasets. So the loss stays in the
journal until an operator acknowledges it. Until then no user can register, because the name may be another user's.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from nearcast.core.controller.ledger import Ledger
from nearcast.core.controller.office import Orders
from nearcast.core.controller.rebuilding import Found, newest_membership, rebuilding
from nearcast.core.model.journal import LOSS_KEY, Known, LossEntry
from nearcast.core.model.membership import Membership
from nearcast.core.model.placement import Record
from nearcast.core.model.settings import CLOCKS, Timing
from nearcast.core.wire import bus


class _Recalled:
    """What the server of one broker has, as far as it has been reported."""

    __slots__ = ("after", "at_s", "complete", "hello", "membership", "records")

    def __init__(self, hello: bus.Hello, now_s: float) -> None:
        self.hello = hello
        self.membership: Membership | None = None
        self.records: dict[str, Record] = {}
        self.after = ""  # the last topic
        self.complete = False
        self.at_s = now_s  # when it was last heard


class Recovery:
    """Inputs: heard, tick. Outputs: outbox, alarms, and a ledger with something to commit when it is over."""

    def __init__(
        self, ledger: Ledger, known: Known, *, timing: Timing, store_url: str, wall_offset_s: float, now_s: float
    ) -> None:
        self.ledger = ledger
        self.outbox: list[tuple[bytes, bytes]] = []
        self.alarms = [
            f"THE STORE HAS LOST DATA of cluster {known.cluster}: it has {ledger.version} commits of its journal, which"
            f" had {known.journal[1]} or more; asking the brokers what they have"
        ]
        self._known = known
        self._timing = timing
        self._store_url = store_url
        self._wall_offset_s = wall_offset_s
        self._since_s = now_s
        self.orders = Orders(ledger.term, timing.retry_s)
        self._recalled: dict[str, _Recalled] = {}
        self._first_s: float | None = None  # when the first broker had reported everything, or said that it has nothing
        self._writing: Iterator[None] | None = None
        self.term_found = 0  # the highest of any record: with a lower one, nothing can be installed in its place

    # --- inputs

    def heard(self, message: bus.ToController, now_s: float) -> None:
        if isinstance(message, bus.Hello):
            if message.answering:
                self._greeted(message, now_s)
        elif isinstance(message, bus.Answer):
            self.orders.answered(message, now_s)
        self.tick(now_s)

    def tick(self, now_s: float) -> None:
        if self._writing is None:
            self._ask_all(now_s)
            if self._over(now_s):
                self._writing = self._write(now_s)
        if self._writing is not None:
            next(self._writing, None)  # some of it in every tick: the leadership is renewed in between

    def mistaken(self, known: Known | None) -> bool:
        """Whether a blank journal should belong to another cluster, and still can."""
        blank = not self.ledger.journal.membership.cluster
        return blank and self._writing is None and known is not None and known.cluster != self._known.cluster

    # --- asking

    def _ask_all(self, now_s: float) -> None:
        for name, recalled in self._recalled.items():
            if not recalled.complete:
                self._ask(name, recalled, now_s)
        self._flush_orders()

    def _greeted(self, hello: bus.Hello, now_s: float) -> None:
        if hello.known.cluster != self._known.cluster:
            self._heard_all(now_s)
            return
        recalled = self._recalled.get(hello.broker)
        if recalled is None or recalled.hello.run_id != hello.run_id:
            self._recalled[hello.broker] = _Recalled(hello, now_s)
        else:
            recalled.hello, recalled.at_s = hello, now_s  # it may be a different agent

    def _heard_all(self, now_s: float) -> None:
        self._first_s = now_s if self._first_s is None else self._first_s

    def _ask(self, name: str, recalled: _Recalled, now_s: float) -> None:
        after = recalled.after

        def done(answer: bus.Answer, at_s: float) -> None:
            if self._recalled.get(name) is not recalled or recalled.after != after:
                return  # from an earlier run of the server, or the same batch again
            recalled.at_s = at_s
            recalled.records.update(answer.records)
            recalled.after = max(answer.records, default=after)
            self.term_found = max(self.term_found, *(record.term for record in answer.records.values()), 0)
            recalled.membership = recalled.membership or answer.membership
            recalled.complete = not answer.more
            if recalled.complete:
                self._heard_all(at_s)

        make = partial(bus.Recall, term=self.ledger.term, after=after)
        self.orders.need(("recall", name, recalled.hello.run_id, after), name, make, done, now_s)

    def _flush_orders(self) -> None:
        for broker, order in self.orders.outgoing:
            channel = bus.agent_channel(broker, self._recalled[broker].hello.agent)
            self.outbox.append((channel, bus.encode(order)))
        self.orders.outgoing.clear()

    # --- the end

    def _over(self, now_s: float) -> bool:
        if now_s - self._since_s < self._timing.heartbeat_s:
            return False  # by then every agent has said hello, and which cluster it belongs to
        if any(not recalled.complete and self._waits(recalled, now_s) for recalled in self._recalled.values()):
            return False
        newest = newest_membership(self.ledger.journal, self._memberships(), self._known)
        answered = all(name in self._recalled and self._recalled[name].complete for name in newest.brokers)
        if newest.brokers and answered and newest.version >= self._known.members:  # else others joined later
            return True
        if self._first_s is None:
            return False  # no broker is there that could take the topics of another
        # A blank store lets us lead at once: the previous leader may not know yet, and grants for up to `leader_s`.
        return now_s - max(self._first_s, self._since_s + CLOCKS * self._timing.leader_s) > self._dead_s

    @property
    def _dead_s(self) -> float:
        """T_dead, long enough for any lease that clients use."""
        memberships = (self.ledger.journal.membership, *self._memberships())
        return max(self._timing.dead_s, *(each.timers.dead_s for each in memberships if each.timers is not None), 0.0)

    def _waits(self, recalled: _Recalled, now_s: float) -> bool:
        return now_s - recalled.at_s <= self._dead_s

    def _memberships(self) -> list[Membership]:
        return [recalled.membership for recalled in self._recalled.values() if recalled.membership is not None]

    def _write(self, now_s: float) -> Iterator[None]:
        found = {
            name: Found(recalled.hello, recalled.membership, recalled.records)
            for name, recalled in self._recalled.items()
            if recalled.complete and recalled.membership is not None and self._is_ours(recalled.membership)
        }
        term = self.ledger.term
        expected = newest_membership(self.ledger.journal, self._memberships(), self._known).brokers
        changes = yield from rebuilding(self.ledger.journal, found, self._known, term, self._store_url)
        missing = ", ".join(name for name in expected if name not in found)
        text = (
            f"the store had {self.ledger.version} commits of a journal that had {self._known.journal[1]} or more;"
            f" it was rebuilt from brokers {', '.join(sorted(found)) or '(none)'}"
            + (f"; without {missing}, which did not answer" if missing else "")
        )
        changes[LOSS_KEY] = LossEntry(now_s + self._wall_offset_s, term, text)
        self.alarms.append(text)
        self.ledger.write(changes)

    def _is_ours(self, membership: Membership) -> bool:
        return membership.cluster == self._known.cluster
