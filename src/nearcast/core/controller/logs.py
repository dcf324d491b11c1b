"""Logs: created and dropped by a new version of the membership, and shown to people (PROTOCOL "Logs").

A change is answered when every broker that is there has the new membership. Each broker's clients hear of it on the
connections they publish on, and replies behind that no longer count. So whatever is published after the answer is kept.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.model.journal import MEMBERSHIP_KEY
from nearcast.core.model.logs import LOGS_MAX, Log, PartLoad, problem_of
from nearcast.core.wire import bus

if TYPE_CHECKING:
    from nearcast.core.controller.members import Members
    from nearcast.core.controller.office import Office, Roster

WAITING_MAX = 1000
SHOW_S = 2.0  # how long brokers are waited for that do not answer


class _Show:
    """Somebody wants to see the logs."""

    def __init__(self, waiting: set[str], now_s: float) -> None:
        self.waiting = waiting  # brokers that have not said yet how much they have
        self.until_s = now_s + SHOW_S
        self.parts: dict[str, dict[str, PartLoad]] = {}


class Logs:
    """Changes the list of logs, one membership for all changes that wait, and answers when all brokers know."""

    def __init__(self, office: Office, roster: Roster, members: Members) -> None:
        self._office = office
        self._roster = roster
        self._ledger = office.ledger
        self._members = members
        self._waiting: dict[str, bus.CreateLog | bus.DropLog] = {}  # requests that have not begun
        self._announced: dict[str, int] = {}  # requests that have, and the version that brokers must know
        self._done: deque[str] = deque(maxlen=WAITING_MAX)  # requests that were carried out: an answer may be lost
        self._shows: dict[str, _Show] = {}

    def heard(self, message: bus.AboutLogs, now_s: float) -> None:
        if isinstance(message, bus.ShowLogs):
            self._show(message.request, now_s)
        elif not self._ledger.journal.membership.ring:  # a young cluster may yet give way to an older one
            self._answer(message.request, "no broker carries topics yet: start one, or wait until it has joined")
        elif len(self._waiting) >= WAITING_MAX:
            self._answer(message.request, f"the controller has {WAITING_MAX} requests waiting: try again later")
        elif message.request in self._done:
            self._answer(message.request)
        elif message.request not in self._announced:
            self._waiting[message.request] = message
            self.tick(now_s)

    def tick(self, now_s: float) -> None:
        if self._waiting and not self._ledger.pending(MEMBERSHIP_KEY):
            self._begin()
        if self._announced and not self._ledger.pending(MEMBERSHIP_KEY) and self._members.all_informed():
            current = self._ledger.journal.membership.version
            for request in [request for request, version in self._announced.items() if version <= current]:
                del self._announced[request]
                self._done.append(request)
                self._answer(request)
        for request, show in list(self._shows.items()):
            if not show.waiting or now_s > show.until_s:
                self._answer_show(request, show)

    # --- showing

    def _show(self, request: str, now_s: float) -> None:
        """Ask every broker how much it has, and answer when all have said so, or did not in time."""
        if request in self._shows or len(self._shows) >= WAITING_MAX:
            return
        membership, term = self._ledger.journal.membership, self._ledger.term
        show = self._shows[request] = _Show({name for name in membership.brokers if self._roster.alive(name)}, now_s)
        for name in sorted(show.waiting):
            make = partial(bus.CountParts, term=term)
            self._office.orders.need(("parts of", name, request), name, make, partial(self._counted, show), now_s)
        self.tick(now_s)

    def _counted(self, show: _Show, answer: bus.Answer, now_s: float) -> None:
        show.waiting.discard(answer.broker)
        show.parts[answer.life] = answer.parts
        self.tick(now_s)

    def _answer_show(self, request: str, show: _Show) -> None:
        del self._shows[request]
        membership = self._ledger.journal.membership
        state = msgspec.structs.replace(
            self._office.state(request), logs=membership.logs, parts=show.parts, former=membership.former
        )
        self._office.reply(state)

    # --- changing

    def _begin(self) -> None:
        waiting, self._waiting = self._waiting, {}
        membership = self._ledger.journal.membership
        version = membership.version + 1
        logs = {log.name: log for log in membership.logs}
        begun = [message.request for message in waiting.values() if self._change(logs, message, version)]
        changed = tuple(logs.values()) != membership.logs
        self._announced |= dict.fromkeys(begun, version if changed else membership.version)
        if changed:
            after = self._members.next_membership(membership, dict(membership.brokers), membership.ring)
            after = msgspec.structs.replace(after, logs=tuple(logs.values()), logs_version=after.version)
            self._ledger.write({MEMBERSHIP_KEY: after})

    def _change(self, logs: dict[str, Log], message: bus.CreateLog | bus.DropLog, version: int) -> bool:
        """Returns whether it is done; if not, that was answered. Repeating a request changes nothing."""
        if isinstance(message, bus.CreateLog):
            log = msgspec.structs.replace(message.log, created=version)
            problem = self._too_few_replicas(log) or _create(logs, log)
        elif logs.pop(message.name, None) is None:
            problem = f"no log {message.name!r}; the cluster has: {', '.join(sorted(logs)) or 'none'}"
        else:
            problem = ""
        if problem:
            self._answer(message.request, problem)
        return not problem

    def _too_few_replicas(self, log: Log) -> str:
        """Why nobody could publish to the log; empty if somebody can."""
        most = max((len(info.replicas) for info in self._ledger.journal.membership.brokers.values()), default=0)
        if log.quorum - 1 <= most:
            return ""
        return (
            f"a quorum of {log.quorum} takes {log.quorum - 1} replicas of a broker, and no broker has more than {most}:"
            " start agents with --replica, or choose a smaller quorum"
        )

    def _answer(self, request: str, problem: str = "") -> None:
        state = self._office.state(request, problem)
        self._office.reply(msgspec.structs.replace(state, logs=self._ledger.journal.membership.logs))


def _create(logs: dict[str, Log], log: Log) -> str:
    """Returns why not, in words; empty if it is there now."""
    known = logs.get(log.name)
    if known is not None:
        same = msgspec.structs.replace(log, created=known.created) == known
        remedy = "drop it first, with all that it keeps, or choose another name"
        return "" if same else f"there is a log {log.name!r} with other settings: {remedy}"
    if len(logs) >= LOGS_MAX:
        return f"there are {LOGS_MAX} logs: drop one first"
    problem = problem_of(log)
    if not problem:
        logs[log.name] = log
    return problem
