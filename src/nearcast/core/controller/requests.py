"""Requests: what people and programs ask of the controller, and the answers.

A request to place topics becomes moves in one commit, all of them or none. It waits while one of its topics is still
moving, or while the directory of a topic no plan names has not said where it is.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from itertools import islice
from math import inf
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.model.journal import LOSS_KEY, MoveEntry, Phase, TopicEntry, broker_key, topic_key
from nearcast.core.model.names import encode_topic
from nearcast.core.model.placement import Placement, Plan, single
from nearcast.core.wire import bus, views
from nearcast.errors import InvalidTopic

if TYPE_CHECKING:
    from nearcast.core.controller.departures import Departures
    from nearcast.core.controller.distances import Distances
    from nearcast.core.controller.members import Members
    from nearcast.core.controller.moves import Moves
    from nearcast.core.controller.office import Office, Roster
    from nearcast.core.controller.planning_input import LoadWindow


REQUEST_S = 30.0  # a request that cannot begin within this time is refused
REQUESTS_MAX = 1000
LOOKUPS_AT_ONCE = 1000  # of all requests together: the orders of very many would displace each other
DECISIONS_SHOWN = 20


class _Pending:
    """A request that has not begun."""

    __slots__ = ("request", "since_s")

    def __init__(self, request: bus.MoveTopics, since_s: float) -> None:
        self.request = request
        self.since_s = since_s


class Requests:
    """Takes requests, begins them when they can begin, and answers them."""

    def __init__(
        self,
        office: Office,
        roster: Roster,
        members: Members,
        moves: Moves,
        departures: Departures,
        load: LoadWindow,
        distances: Distances,
    ) -> None:
        self._office = office
        self._ledger, self._orders = office.ledger, office.orders
        self._roster = roster
        self._members = members
        self._moves = moves
        self._departures = departures
        self._load = load
        self._distances = distances
        self._pending: list[_Pending] = []
        # What a directory said about topics no plan names. It holds for one membership and one run of the server: after
        # that, the topic may have been used for the first time again, elsewhere.
        self._looked_up: dict[str, tuple[tuple[int, str], Placement]] = {}
        self._looking_up = 0  # in this tick

    def __len__(self) -> int:
        """Requests that have not begun."""
        return len(self._pending)

    def heard(self, message: bus.AboutTopics, now_s: float) -> None:
        if isinstance(message, bus.Show):
            self._show(message, now_s)
        elif isinstance(message, bus.Drain):
            self._drain(message)
        elif isinstance(message, bus.SetCapacity):
            self._set_capacity(message)
        elif isinstance(message, bus.SetMessagesHigh):
            self._set_messages_high(message)
        elif isinstance(message, bus.AcknowledgeLoss):
            self._acknowledge_loss(message)
        elif len(self._pending) >= REQUESTS_MAX:
            self._refuse(message.request, f"the controller has {REQUESTS_MAX} requests waiting: try again later")
        elif all(pending.request.request != message.request for pending in self._pending):
            self._pending.append(_Pending(message, now_s))
            self.tick(now_s)

    def tick(self, now_s: float) -> None:
        waiting, self._pending = self._pending, []
        self._looking_up = 0
        for pending in waiting:
            if self._begin(pending.request, now_s):
                continue
            if now_s - pending.since_s > REQUEST_S:
                self._refuse(pending.request.request, "the topics kept moving, or their directory did not answer")
            else:
                self._pending.append(pending)
        if not self._pending:
            self._looked_up.clear()  # what was found out for refused requests is no longer needed

    # --- placing topics

    def _begin(self, request: bus.MoveTopics, now_s: float) -> bool:
        """Start all moves of a request in one commit. Returns False if something must be found out or end first."""
        problem = self.problem(request.placements)
        if problem:
            self._refuse(request.request, problem)
            return True
        topics = request.placements
        if not self._all_known(topics, now_s) or any(self._busy(topic) for topic in topics):
            return False
        ledger = self._ledger
        current = Plan(ledger.version, {topic: self._current(topic) for topic in topics})
        if not _by_policy(request.request):
            self._pin(current)
        for change in current.diff(self._wanted(request, current)):
            assert change.before is not None
            assert change.after is not None
            entry = TopicEntry(change.before, MoveEntry(Phase.PREPARE, change.after))
            ledger.write_topic(change.topic, entry, partial(self._moves.began, change.topic, request.pace))
        ledger.write({}, lambda at_s: self._answer(request.request, tuple(topics), at_s))
        return True

    def _pin(self, current: Plan) -> None:
        """A topic that someone has placed stays there whatever the ring does, even if it was there before."""
        for topic, placement in current.topics.items():
            if topic not in self._ledger.journal.topics:
                self._ledger.write_topic(topic, TopicEntry(placement))

    def _wanted(self, request: bus.MoveTopics, current: Plan) -> Plan:
        members = self._ledger.journal.membership.version
        return Plan(
            current.version + 1,
            {
                topic: Placement(current.topics[topic].epoch + 1, mode, brokers, members)
                for topic, (mode, brokers) in request.placements.items()
            },
        )

    def problem(self, wanted: bus.Placements) -> str:
        """What is wrong with placing topics like this, in words for the person who asked; empty if it can be done."""
        carriers = self._roster.carriers()
        brokers = self._ledger.journal.brokers
        for topic, (_, named) in wanted.items():
            try:
                encode_topic(topic)
            except InvalidTopic as error:
                return str(error)
            for broker in named:
                if broker in brokers and broker not in carriers:
                    choice = ", ".join(sorted(carriers)) or "none"
                    return f"topic {topic!r}: broker {broker!r} is {brokers[broker].state}; the members are: {choice}"
        placements = {topic: Placement(0, mode, named) for topic, (mode, named) in wanted.items()}
        return "; ".join(Plan(0, placements).validate(carriers))

    def _busy(self, topic: str) -> bool:
        return self._moves.stage(topic) is not None or self._ledger.pending(topic_key(topic))

    def _all_known(self, topics: Collection[str], now_s: float) -> bool:
        """Whether the placements of all topics are known; some of the others are looked up, the first of them first."""
        known = True
        for topic in topics:
            known = self._known(topic, now_s) and known
            if self._looking_up >= LOOKUPS_AT_ONCE:
                return False
        return known

    def _known(self, topic: str, now_s: float) -> bool:
        """Whether the topic's placement is known; a topic that was never placed is looked up at its directory."""
        journal = self._ledger.journal
        if topic in journal.topics:
            return True
        membership = journal.membership
        directory = membership.directory(topic.encode())
        if directory is None or self._ledger.pending(broker_key(directory)):
            return False
        view = (membership.version, journal.brokers[directory].run_id)
        if topic in self._looked_up and self._looked_up[topic][0] == view:
            return True

        def found(answer: bus.Answer, at_s: float) -> None:
            self._looked_up[topic] = (view, answer.records[topic].placement)

        self._looking_up += 1
        make = partial(bus.Lookup, term=self._ledger.term, topic=topic, membership=membership)
        self._orders.need(("lookup", topic, view), directory, make, found, now_s)
        return False

    def _current(self, topic: str) -> Placement:
        entry = self._ledger.journal.topics.get(topic)
        return entry.placement if entry is not None else self._looked_up.pop(topic)[1]

    # --- brokers

    def _drain(self, request: bus.Drain) -> None:
        departures = self._departures
        if request.cancel:
            problem = departures.cancel(request.broker)
        else:
            problem = departures.begin(request.broker, abandon=request.abandon)
        self._answer_when_written(request.request, problem)

    def _set_capacity(self, request: bus.SetCapacity) -> None:
        rate, problem = request.bytes_per_s, ""
        if not 0 < rate < inf:
            problem = f"a capacity of {rate:g} bytes per second: it must be above 0 and finite"
        self._change_broker(request, problem, capacity_bytes_per_s=rate)

    def _set_messages_high(self, request: bus.SetMessagesHigh) -> None:
        rate, problem = request.per_s, ""
        if not 0 <= rate < inf:
            problem = f"a limit of {rate:g} messages per second: it must be above 0, or 0 for that of the policy"
        self._change_broker(request, problem, messages_high_per_s=rate)

    def _change_broker(self, request: bus.SetCapacity | bus.SetMessagesHigh, problem: str, **figures: float) -> None:
        entry = self._ledger.journal.brokers.get(request.broker)
        if entry is None:
            problem = self._roster.unknown(request.broker)
        elif not problem and self._ledger.pending(broker_key(request.broker)):
            problem = f"broker {request.broker!r} is just changing its state: try again"
        elif not problem:
            self._ledger.write_broker(request.broker, msgspec.structs.replace(entry, **figures))
        self._answer_when_written(request.request, problem)

    def _acknowledge_loss(self, request: bus.AcknowledgeLoss) -> None:
        ledger, loss = self._ledger, self._ledger.journal.loss
        problem = ""
        if loss is None:
            problem = "no data loss of the store is known"
        elif ledger.pending(LOSS_KEY):
            problem = "the journal's entry of the loss is just being changed: try again"
        else:
            ledger.write({LOSS_KEY: msgspec.structs.replace(loss, acknowledged=True)})
        self._answer_when_written(request.request, problem)

    def _answer_when_written(self, request: str, problem: str) -> None:
        if problem:
            self._refuse(request, problem)
        else:
            self._ledger.write({}, lambda at_s: self._send(self._state(request, {}, at_s)))

    # --- answers

    def _refuse(self, request: str, problem: str) -> None:
        self._send(self._office.state(request, problem))

    def _show(self, request: bus.Show, now_s: float) -> None:
        names: Collection[str] = request.topics or self._ledger.journal.topics
        if request.brokers_only:
            names = ()
        end = request.start + bus.SHOWN_MAX
        part = tuple(islice(names, request.start, end))
        self._answer(request.request, part, now_s, next_start=end if end < len(names) else 0)

    def _answer(self, request: str, names: tuple[str, ...], now_s: float, *, next_start: int = 0) -> None:
        states = {topic: state for topic in names if (state := self._topic_state(topic)) is not None}
        distances = {topic: found for topic in names if (found := self._distances.of(topic)) is not None}
        answer = self._state(request, states, now_s)
        self._send(msgspec.structs.replace(answer, distances=distances, next_start=next_start))

    def _state(self, request: str, states: dict[str, views.TopicState], now_s: float) -> bus.State:
        journal = self._ledger.journal
        brokers = {name: self._broker_view(name, now_s) for name in journal.brokers}
        decisions = list(self._office.decisions)[-DECISIONS_SHOWN:]
        return msgspec.structs.replace(
            self._office.state(request),
            topics=states,
            brokers=brokers,
            decisions=decisions,
            loss=journal.loss,
            logs=journal.membership.logs,
            bounds=journal.membership.bounds,
            round_trips_s=self._distances.round_trips_s,
        )

    def _broker_view(self, name: str, now_s: float) -> views.BrokerView:
        entry = self._ledger.journal.brokers[name]
        responds = self._roster.alive(name) and self._members.granted_lately(name, now_s)
        report = self._load.latest(name)
        if report is not None:
            report = msgspec.structs.replace(report, topics={}, distances={})  # thousands, and not used here
        return views.BrokerView(
            entry.url,
            entry.site,
            entry.state,
            responds,
            report,
            entry.capacity_bytes_per_s,
            entry.rented,
            self._departures.keeps.get(name, {}),
            entry.messages_high_per_s,
        )

    def _topic_state(self, topic: str) -> views.TopicState | None:
        journal = self._ledger.journal
        entry = journal.topics.get(topic)
        if entry is None:
            directory, members = self._roster.directory(topic), journal.membership.version
            return views.TopicState(single(members, directory, members), planned=False) if directory else None
        target = entry.move.target if entry.move is not None else None
        return views.TopicState(entry.placement, target, self._moves.stage(topic) or "")

    def _send(self, state: bus.State) -> None:
        if not _by_policy(state.request):
            self._office.reply(state)
        elif state.problem:  # the policy asked: it looks at the next snapshot
            self._office.log(f"a proposal was refused: {state.problem}")


def _by_policy(request: str) -> bool:
    """People's requests begin with the name of the asker."""
    return request.startswith(".")
