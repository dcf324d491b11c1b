"""Replicas: which of them may have something of which life, and who has its parts when it has ended (PROTOCOL "Logs").

A broker's replicas are listed in the membership before its agent admits them. When the life ends, they are sealed: each
stops following, and says how far it had come. Whatever was acknowledged was at `quorum - 1` of them. So of any
`replicas - quorum + 2` that were sealed, at least one has it, and the one that had come farthest has all of it: it
becomes the holder. A replica that has nothing of the life has never had anything if it still is in the run in which
it was listed. If it was restarted, it may have lost something, and does not count.

A replica may never answer again. Then the operator decides not to wait for it: the best of the others holds, and what
only the silent ones may have is reported as a part that is lost. If there are no others, everything is.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.model.journal import MEMBERSHIP_KEY, BrokerState
from nearcast.core.model.logs import FormerLife, PartState, Sealed, broker_of, unanswered_of
from nearcast.core.model.membership import BrokerInfo, Membership
from nearcast.core.wire import bus

if TYPE_CHECKING:
    from nearcast.core.controller.members import Members
    from nearcast.core.controller.office import Office

TURN_S = 2.0  # how long one agent has to reach a replica before another one is asked
SEAL_S = 5.0  # how long replicas are waited for before they can be given up
REQUESTS_MAX = 1000


class Replicas:
    """Lists replicas, has them sealed, names holders, and gives up what the operator does not want to wait for."""

    def __init__(self, office: Office, members: Members) -> None:
        self._office = office
        self._ledger, self._orders = office.ledger, office.orders
        self._members = members
        self._sealed: dict[tuple[str, str], Sealed] = {}  # (life, replica) -> how far it had come
        self._since_s: dict[str, float] = {}  # lives that are being sealed, and since when we know
        self._given_up: dict[str, FormerLife] = {}  # request -> the life as it was then
        self._done: deque[str] = deque(maxlen=REQUESTS_MAX)  # requests that were carried out: an answer may be lost

    def tick(self, now_s: float) -> None:
        membership = self._ledger.journal.membership
        if self._ledger.pending(MEMBERSHIP_KEY):
            return
        brokers = {name: self._listed(name, info, membership) for name, info in membership.brokers.items()}
        former = tuple(self._decided(life, membership, now_s) for life in membership.former)
        sealing = [life.life for life in former if life.state is PartState.SEALING]
        self._since_s = {life: self._since_s.get(life, now_s) for life in sealing}
        given_up = {
            request: life for request, life in self._given_up.items() if self._still_waits(request, life, former)
        }
        self._given_up.clear()
        for life in given_up.values():
            if life in former:  # it may have been given up twice
                former = self._without(life, former, membership.version + 1)
        if (brokers, former) != (membership.brokers, membership.former):
            after = self._members.next_membership(membership, brokers, membership.ring)
            after = msgspec.structs.replace(after, former=former)
            self._ledger.write({MEMBERSHIP_KEY: after}, partial(self._written, tuple(given_up)))
        else:
            self._written(tuple(given_up), now_s)

    # --- living brokers

    def _listed(self, name: str, info: BrokerInfo, membership: Membership) -> BrokerInfo:
        """With the replicas that its agent has, if the broker is there. None is taken off: it may have something."""
        entry, hello = self._ledger.journal.brokers.get(name), self._members.last_hello(name)
        if entry is None or hello is None or entry.state is not BrokerState.MEMBER or hello.run_id != entry.run_id:
            return info
        known = info.replicas if info.admits == hello.run_id else {}
        taken = (url for url in hello.replicas if _is_taken(url, name, membership))
        listed = {**hello.replicas, **known}
        for url in taken:
            listed.pop(url)
        return msgspec.structs.replace(info, replicas=listed, admits=hello.run_id) if listed != known else info

    # --- lives that have ended

    def _decided(self, former: FormerLife, membership: Membership, now_s: float) -> FormerLife:
        """What is known of a life by now."""
        quorums = [log.quorum for log in membership.logs if log.quorum > 1]
        if former.state is PartState.LOST:
            return former
        if not quorums:
            return msgspec.structs.replace(former, state=PartState.LOST, url="")
        if former.state is PartState.HELD:
            return former
        sealed, counted = self._answers(former)
        if len(counted) >= max(1, len(former.replicas) - min(quorums) + 2):
            holder = max(counted, key=lambda url: (counted[url], url))
            if counted[holder] < 0:  # no replica has ever had anything, so nothing was acknowledged
                nothing = {log.key: 0 for log in membership.logs if log.quorum > 1}
                return msgspec.structs.replace(former, state=PartState.LOST, counts=nothing)
            self._office.log(f"the parts of {former.life} are held by {holder}")
            return msgspec.structs.replace(former, state=PartState.HELD, url=holder)
        if len(sealed) == len(former.replicas):
            self._office.log(f"the parts of {former.life} are lost: too few of its replicas have something")
            return msgspec.structs.replace(former, state=PartState.LOST)
        for url in former.replicas:
            if url not in sealed:
                self._order(former.life, url, now_s)
        return former

    def _answers(self, former: FormerLife) -> tuple[set[str], dict[str, int]]:
        """The replicas that were sealed, and how far those had come that count."""
        sealed = {url: self._sealed[former.life, url] for url in former.replicas if (former.life, url) in self._sealed}
        reached = {url: self._reached(former, url, found) for url, found in sealed.items()}
        return set(sealed), {url: offset for url, offset in reached.items() if offset is not None}

    def _reached(self, former: FormerLife, url: str, sealed: Sealed) -> int | None:
        """How far a sealed replica had come; None if it may have lost something."""
        if sealed.life == former.life:
            return sealed.offset
        return -1 if sealed.run_id == former.replicas[url] else None

    def _order(self, life: str, url: str, now_s: float) -> None:
        """Have a replica sealed, by the broker's own agent if it is there, otherwise by another one, in turn."""

        def done(answer: bus.Answer, at_s: float) -> None:
            if answer.sealed is not None:
                self._sealed[life, url] = answer.sealed

        own = broker_of(life)
        sealers = sorted(self._members.heard_now(now_s), key=lambda name: (name != own, name))
        if sealers:
            sealer = sealers[int(now_s / TURN_S) % len(sealers)]
            make = partial(bus.Seal, term=self._ledger.term, life=life, url=url)
            self._orders.need(("seal", life, url, sealer), sealer, make, done, now_s)

    # --- lives that are given up

    def heard(self, message: bus.AbandonPart, now_s: float) -> None:
        problem = "" if message.request in self._done else self._problem(message.life, now_s)
        former = self._ledger.journal.membership.former_life(message.life)
        if problem or former is None or message.request in self._done:
            self._office.reply(self._office.state(message.request, problem))
        elif len(self._given_up) < REQUESTS_MAX:
            self._given_up[message.request] = former

    def _problem(self, life: str, now_s: float) -> str:
        """Why a part cannot be given up, in words; empty if it can."""
        membership = self._ledger.journal.membership
        former, broker = membership.former_life(life), broker_of(life)
        if broker and membership.life(broker) == life:
            return f"{life} has not ended: `nearcast brokers drain {broker} --abandon` lets its broker leave"
        if former is None:
            there = [each.life for each in membership.former if each.state is not PartState.LOST]
            return f"no part {life[:80]!r} has ended; can be given up: {', '.join(there) or 'none'}"
        if former.state is PartState.LOST:
            return f"{life} is lost already"
        left_s = self._since_s.get(life, now_s) + SEAL_S - now_s
        if former.state is PartState.SEALING and left_s > 0:
            return f"{life} has just ended, and its replicas were asked a moment ago: try again in {left_s:.0f} s"
        return ""

    def _still_waits(self, request: str, life: FormerLife, former: tuple[FormerLife, ...]) -> bool:
        """Whether a life is as it was when it was given up. If somebody has answered meanwhile, that is said."""
        if life not in former:
            problem = f"{life.life} is no longer {life.state}: look at it with `nearcast log show`"
            self._office.reply(self._office.state(request, problem))
        return life in former

    def _without(self, given_up: FormerLife, former: tuple[FormerLife, ...], version: int) -> tuple[FormerLife, ...]:
        """The lives that have ended, after one was given up."""
        _, counted = self._answers(given_up)
        best = max(counted, key=lambda url: (counted[url], url), default="")
        rest: tuple[FormerLife, ...] = ()
        if given_up.state is PartState.SEALING and best and counted[best] >= 0:
            left = msgspec.structs.replace(given_up, state=PartState.HELD, url=best)
            rest = (FormerLife(unanswered_of(given_up.life), version),)
            self._office.log(f"{given_up.life} was given up by the operator; what {best} has is read there")
        else:
            left = msgspec.structs.replace(given_up, state=PartState.LOST, url="")
            self._office.log(f"{given_up.life} was given up by the operator")
        return (*(left if each == given_up else each for each in former), *rest)

    def _written(self, requests: tuple[str, ...], now_s: float) -> None:
        for request in requests:
            self._done.append(request)
            self._office.reply(self._office.state(request))


def _is_taken(url: str, broker: str, membership: Membership) -> bool:
    """Whether a replica has, or may have, something of another life."""
    if any(url in info.replicas for name, info in membership.brokers.items() if name != broker):
        return True
    return any(
        former.url == url if former.state is PartState.HELD else url in former.replicas
        for former in membership.former
        if former.state is not PartState.LOST
    )
