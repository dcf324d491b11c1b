"""Coordination: which gateway serves which subscriber.

This is the part of the paper's Broker Coordination Service (BAD, section 3) that a leader does: registerbroker,
registeruser, requestbroker, and moves of subscribers.

None of it is in the journal. Every two seconds each gateway reports who is online there, what each user wants and what
that costs; gateways also keep users' homes and cursors. So a new leader knows everything one report later. Until it has
heard every gateway, or two reports' time has passed, it answers no user, and users ask again. A plan of moves that dies
with its leader is made again from the loads at that time, and a user that moved as asked is simply online elsewhere.
Two leaders at once could at worst send a user twice, and a user may move at any time.

Balancing works like planning: the balancer runs outside the machine, `Ask` is an effect and its answer an input. It is
asked when no subscriber is moving and every gateway has reported since the last move ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.controller.gateways import Assigner, AssignmentRule, Gateway, Gateways, estimated_s
from nearcast.core.model.names import GATEWAY_CHANNEL, user_problem
from nearcast.core.model.planning import Balancer, SubscriberProposal, SubscriberSnapshot
from nearcast.core.model.settings import NEVER_S
from nearcast.core.wire import bus, views
from nearcast.core.wire.bus import REPORT_S
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.core.controller.distances import Distances
    from nearcast.core.controller.effects import Questions
    from nearcast.core.controller.office import Office, Roster


SAY_AGAIN_S = 1.0
STEP_S = 0.25  # reports come every two seconds: looking more often shows nothing new


# --- subscribers that are moving


class _Trip:
    """One subscriber's move."""

    __slots__ = ("said_s", "since_s", "source", "target")

    def __init__(self, source: str, target: str, now_s: float) -> None:
        self.source = source
        self.target = target
        self.since_s = now_s
        self.said_s = NEVER_S


class SubscriberMoves:
    """Sends subscribers between gateways, in waves. `takes` says whether a gateway may be given subscribers.

    The source gateway is asked to move a user. Its session tells the user's program, which logs in at the target and
    then leaves the source: make before break. The request is repeated every second until the source's reports show that
    the user has gone. If a user left for other reasons, the result is the same: it will ask for its gateway.

    A gateway takes part in a limited number of moves at a time, as source or as target. So a shuffle of thousands
    neither floods a target with logins nor leaves subscribers waiting in a queue they know nothing about; the rest wait
    here.
    """

    def __init__(self, gateways: Gateways, takes: Callable[[str], bool], at_once: int, give_up_s: float) -> None:
        self._gateways = gateways
        self._takes = takes
        self._at_once = at_once
        self._give_up_s = give_up_s
        self._waiting: dict[str, tuple[str, str]] = {}
        self._trips: dict[str, _Trip] = {}
        self._stepped_s = NEVER_S
        self.outgoing: list[tuple[str, dict[str, tuple[str, str]]]] = []  # (source, user -> (target, its URL)), to send
        self.given_up: list[str] = []  # users that did not move in time, for the log
        self.ended_s = NEVER_S  # when the last one ended

    def __len__(self) -> int:
        return len(self._waiting) + len(self._trips)

    def __iter__(self) -> Iterator[tuple[str, tuple[str, str]]]:
        """Users with their source and target: first those that are moving, then those that wait."""
        yield from ((user, (trip.source, trip.target)) for user, trip in self._trips.items())
        yield from self._waiting.items()

    def target(self, user: str) -> str | None:
        """Where a user is moving to, or will be."""
        trip = self._trips.get(user)
        if trip is not None:
            return trip.target
        return self._waiting[user][1] if user in self._waiting else None

    def by_source(self) -> Counter[str]:
        return Counter(source for _, (source, _) in self)

    def on_the_way(self) -> Counter[str]:
        """Moves in progress by gateway, both from it and to it."""
        return Counter(name for trip in self._trips.values() for name in (trip.source, trip.target))

    def add(self, user: str, source: str, target: str) -> bool:
        """Plan a move; False if it makes no sense, or no longer does. A move that has begun is not reversed."""
        fits = source != target and self._takes(target) and self._gateways.online_at(user, source)
        if not fits or user in self._trips:
            return False
        self._waiting[user] = (source, target)
        return True

    def step(self, now_s: float) -> None:
        if not self or now_s - self._stepped_s < STEP_S:
            return
        self._stepped_s = now_s
        self._end(now_s)
        self._begin(now_s)
        self._say(now_s)

    def __bool__(self) -> bool:
        return bool(self._waiting or self._trips)

    def _end(self, now_s: float) -> None:
        for user, trip in list(self._trips.items()):
            gone = not self._gateways.online_at(user, trip.source)
            late = now_s - trip.since_s > self._give_up_s
            if gone or late or not self._takes(trip.target):
                del self._trips[user]
                self.ended_s = now_s
                if late and not gone:
                    self.given_up.append(user)

    def _begin(self, now_s: float) -> None:
        busy = self.on_the_way()
        for user, (source, target) in list(self._waiting.items()):
            if not (self._gateways.online_at(user, source) and self._takes(target)):
                del self._waiting[user]
            elif busy[source] < self._at_once and busy[target] < self._at_once:
                del self._waiting[user]
                self._trips[user] = _Trip(source, target, now_s)
                busy[source] += 1
                busy[target] += 1

    def _say(self, now_s: float) -> None:
        orders: dict[str, dict[str, tuple[str, str]]] = {}
        for user, trip in self._trips.items():
            if now_s - trip.said_s >= SAY_AGAIN_S:
                trip.said_s = now_s
                url = self._gateways[trip.target].report.url
                orders.setdefault(trip.source, {})[user] = (trip.target, url)
        self.outgoing += orders.items()


# --- coordination


LISTEN_S = 2 * REPORT_S  # a new leader answers no user before, unless every broker's gateway has reported
REQUESTS_MAX = 1000  # to move a user, waiting for the next reports
PROMISES_MAX = 100_000  # users that were given a gateway and are not online yet; at the limit the oldest is forgotten
MOVING_SHOWN = 100


class CoordinationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How subscribers get their gateways. Without a balancer they stay where they were placed."""

    placement: AssignmentRule = AssignmentRule.NR
    balancer: Balancer | None = None
    balance_s: float = 10.0  # between two looks at the loads
    silence_s: float = 3 * REPORT_S  # a gateway that has not reported for this long is gone
    moves_at_once: int = 50  # subscribers moving from or to one gateway; the others wait their turn
    give_up_s: float = 20.0  # a subscriber that has not moved within this time stays

    def __post_init__(self) -> None:
        if self.balance_s <= 0 or self.silence_s <= REPORT_S or self.moves_at_once < 1 or self.give_up_s <= REPORT_S:
            raise UsageError(
                f"coordination needs balance_s > 0, silence_s and give_up_s > {REPORT_S:g}, and moves_at_once >= 1"
            )


class Balancing:
    """A balancer as a decider."""

    def __init__(self, balancer: Balancer) -> None:
        self.name = f"balancer {balancer.name}"
        self._balancer = balancer

    def decide(self, view: SubscriberSnapshot) -> SubscriberProposal:
        return self._balancer.propose(view)


class Coordination:
    """Answers users and gateways, and moves subscribers between gateways."""

    def __init__(
        self,
        office: Office,
        roster: Roster,
        distances: Distances,
        questions: Questions,
        settings: CoordinationSettings,
        rng: Random,
        now_s: float,
    ) -> None:
        self._office = office
        self._roster = roster
        self._distances = distances
        self._questions = questions
        self._settings = settings
        self._since_s = now_s
        self._gateways = Gateways(settings.silence_s)
        self._moves = SubscriberMoves(self._gateways, self._takes, settings.moves_at_once, settings.give_up_s)
        self._assigner = Assigner(settings.placement, rng)
        self._promised: dict[str, str] = {}
        self._asking = False  # the balancer, which has not answered yet
        self._balanced_s = now_s
        self._shuffle = ""  # a person's request for a shuffle, until the balancer is asked
        self._shuffling = ""  # until it has answered
        self._shuffled = ""  # the last one that was answered: it may be asked again if the answer was lost
        self._last_problem = ""
        self._unready: dict[str, tuple[bus.PlaceSubscriber, float]] = {}  # requests to move, and since when they wait

    # --- inputs

    def heard(self, message: bus.FromGateway | bus.AboutSubscribers, now_s: float) -> None:
        if isinstance(message, bus.GatewayReport):
            self._gateways.add(message, now_s)
            for user in message.online:
                self._promised.pop(user, None)
            self._place_all(now_s)
            self._step(now_s)
        elif isinstance(message, bus.RegisterUser):
            self._office.reply(
                bus.Assignment(message.request, problem=user_problem(message.user) or self._unsure_of_names)
            )
        elif isinstance(message, bus.RequestBroker):
            self._assign(message, now_s)
        elif isinstance(message, bus.ShowSubscribers):
            self._show(message.request, message.users)
        elif isinstance(message, bus.PlaceSubscriber):
            self._ask_place(message, now_s)
        else:
            self._ask_shuffle(message.request)

    @property
    def _unsure_of_names(self) -> str:
        """Whether a name may be another user's: the store has lost data, and with it registrations."""
        loss = self._office.journal.loss
        if loss is None or loss.acknowledged:
            return ""
        return (
            "no user can register now: the store has lost data, and the name may belong to another user; "
            "the operator must deal with it (nearcast store)"
        )

    def tick(self, now_s: float) -> None:
        self._place_all(now_s)
        if not self._gateways:
            return
        for broker in self._gateways.forget_silent(now_s):
            self._office.log(f"gateway {broker} is silent: no subscribers are sent there")
        self._step(now_s)
        if not self._moves:
            self._empty_leaving(now_s)
            self._balance(now_s)

    def _proposed(self, proposal: SubscriberProposal | None, now_s: float) -> None:
        """The balancer's answer; None if it failed."""
        self._asking = False
        request, self._shuffling = self._shuffling, ""
        if proposal is None:
            if request:
                self._refuse(request, "the balancer failed: see the controller's log")
            return
        if proposal.problem and proposal.problem != self._last_problem:
            self._office.decided(f"{proposal.policy}: {proposal.problem}", now_s)
        self._last_problem = proposal.problem
        begun = [move for move in proposal.moves if self._moves.add(move.subscriber, move.source, move.target)]
        if begun:
            self._office.decided(str(msgspec.structs.replace(proposal, moves=tuple(begun))), now_s)
        self._step(now_s)
        if request:
            self._shuffled = request
            self._show(request)

    # --- gateways

    def _takes(self, broker: str) -> bool:
        """Whether subscribers may be sent there: it reports, and its broker is a member that stays."""
        return broker in self._gateways and broker in self._roster.carriers()

    def _taking(self) -> dict[str, Gateway]:
        carriers = self._roster.carriers()
        return {name: self._gateways[name] for name in self._gateways.names() if name in carriers}

    def _empty_leaving(self, now_s: float) -> None:
        """Send the subscribers of a leaving broker to the other gateways in turn."""
        taking = sorted(self._taking())
        for broker in self._gateways.names():
            if taking and broker not in taking and self._roster.carries(broker):
                users = self._gateways[broker].report.online
                for number, user in enumerate(users):
                    self._moves.add(user, broker, taking[number % len(taking)])
                if users:
                    self._office.decided(f"{broker} leaves: its {len(users)} subscribers move", now_s)

    def _step(self, now_s: float) -> None:
        self._moves.step(now_s)
        for source, moves in self._moves.outgoing:
            self._office.publish(GATEWAY_CHANNEL + source.encode(), bus.MoveSubscribers(self._office.term, moves))
        self._moves.outgoing.clear()
        if self._moves.given_up:
            users = self._moves.given_up
            self._office.log(
                f"{len(users)} subscribers did not move in {self._settings.give_up_s:g} s: {users[0]}, ..."
            )
            users.clear()

    # --- users

    def _assign(self, asked: bus.RequestBroker, now_s: float) -> None:
        problem = user_problem(asked.user)
        if problem:
            self._office.reply(bus.Assignment(asked.request, problem=problem))
            return
        taking = self._taking()
        if now_s - self._since_s < LISTEN_S and not taking.keys() >= self._roster.carriers():
            return
        if not taking:
            problem = "no gateway of a member broker reports: start agents with a gateway, or wait for them"
            self._office.reply(bus.Assignment(asked.request, problem=problem))
            return
        broker = self._gateway_of(asked, taking)
        self._office.reply(bus.Assignment(asked.request, broker, taking[broker].report.url))

    def _gateway_of(self, asked: bus.RequestBroker, taking: dict[str, Gateway]) -> str:
        """Where it is or is going, else its latest answer, else its home; otherwise the placement policy chooses.

        A user that has measured gateways, and is at none, leaves its home for one that is clearly nearer.
        """
        user = asked.user
        for broker in (self._moves.target(user), self._gateways.where(user)):
            if broker in taking:
                return broker
        near_s = estimated_s(asked.round_trips_s, self._distances.round_trips_s, taking)
        for broker in (self._promised.get(user), asked.home):
            if broker in taking and self._assigner.stays(broker, near_s):
                return broker
        broker = self._assigner.choose(taking, asked.latitude, asked.longitude, near_s)
        self._promised.pop(user, None)
        self._promised[user] = broker
        if len(self._promised) > PROMISES_MAX:
            del self._promised[next(iter(self._promised))]
        return broker

    # --- balancing

    def _balance(self, now_s: float) -> None:
        settings = self._settings
        if settings.balancer is None or self._asking:
            return
        taking = self._taking()
        reported = all(one.heard_s > self._moves.ended_s and len(one.rates) > 1 for one in taking.values())
        if len(taking) < 2 or not reported:
            return
        if not self._shuffle and now_s - max(self._balanced_s, self._moves.ended_s) < settings.balance_s:
            return
        self._balanced_s = now_s
        self._asking = True
        self._shuffling, self._shuffle = self._shuffle, ""
        snapshot = self._gateways.snapshot(taking, shuffle=bool(self._shuffling))
        self._questions.ask(Balancing(settings.balancer), snapshot, self._proposed)

    def _ask_shuffle(self, request: str) -> None:
        if request in (self._shuffle, self._shuffling):
            return
        if request == self._shuffled:
            self._show(request)
        elif self._settings.balancer is None:
            self._refuse(request, "the controller does not balance subscribers: start it with --balance ldm")
        elif len(self._taking()) < 2:
            self._refuse(request, "there are fewer than two gateways: no subscriber can move")
        elif self._moves or self._shuffle or self._shuffling:
            self._refuse(request, f"{len(self._moves)} subscribers are moving or about to: try again in a few seconds")
        else:
            self._shuffle = request  # if single moves are planned in the meantime, it comes after them

    # --- people

    def _ask_place(self, asked: bus.PlaceSubscriber, now_s: float) -> None:
        """What cannot be done yet waits for the next reports: a user that has just logged in is in no report."""
        if asked.request in self._unready or self._place(asked, now_s):
            return
        if len(self._unready) >= REQUESTS_MAX:
            self._refuse(asked.request, f"{REQUESTS_MAX} requests to move a user wait: try again in a few seconds")
        else:
            self._unready[asked.request] = (asked, now_s)

    def _place_all(self, now_s: float) -> None:
        for request, (asked, since_s) in list(self._unready.items()):
            if self._place(asked, now_s, final=now_s - since_s >= LISTEN_S):
                del self._unready[request]

    def _place(self, asked: bus.PlaceSubscriber, now_s: float, *, final: bool = False) -> bool:
        """Returns whether the request was answered; it is refused only if `final`."""
        problem = self._problem_of(asked)
        if problem and not final:
            return False
        if problem:
            self._refuse(asked.request, problem)
            return True
        source = self._gateways.where(asked.user)
        if source is not None and self._moves.add(asked.user, source, asked.broker):
            self._office.decided(f"{asked.user}: {source} -> {asked.broker} (as asked)", now_s)
            self._step(now_s)
        self._show(asked.request, (asked.user,))
        return True

    def _problem_of(self, asked: bus.PlaceSubscriber) -> str:
        """Why the user cannot be moved, by the reports so far."""
        if not self._takes(asked.broker):
            choice = ", ".join(sorted(self._taking())) or "none"
            return f"no subscriber can be sent to {asked.broker!r}; choose from: {choice}"
        if self._gateways.where(asked.user) is None:
            return f"user {asked.user!r} is not online at any gateway: nothing to move"
        if self._moves.target(asked.user) not in (None, asked.broker):
            return f"user {asked.user!r} is moving right now: try again in a few seconds"
        return ""

    def _show(self, request: str, users: tuple[str, ...] = ()) -> None:
        taking, moving = self._taking(), self._moves.by_source()
        views = {name: _view(self._gateways[name], name in taking, moving[name]) for name in self._gateways.names()}
        assignments = {user: found for user in users if (found := self._gateways.where(user)) is not None}
        shown = dict(pair for pair, _ in zip(self._moves, range(MOVING_SHOWN), strict=False))
        wanted = {user: pair for user, pair in self._moves if user in users} if users else {}
        state = self._office.state(request)
        state = msgspec.structs.replace(state, gateways=views, assignments=assignments, moving=shown | wanted)
        self._office.reply(state)

    def _refuse(self, request: str, problem: str) -> None:
        self._office.reply(self._office.state(request, problem))


def _view(gateway: Gateway, takes: bool, moving: int) -> views.GatewayView:
    report = gateway.report
    backend, incoming, outgoing = gateway.load
    frontend = sum(map(len, report.online.values()))
    return views.GatewayView(
        report.url, report.site, takes, len(report.online), frontend, backend, incoming, outgoing, moving
    )
