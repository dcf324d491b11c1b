"""Logs: created and dropped by a new version of the membership (PROTOCOL "Logs").

A change is answered when every broker that is there has the new membership. Each broker's clients hear of it on the
connections they publish on, and replies behind that no longer count. So whatever is published after the answer is kept.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.model.journal import MEMBERSHIP_KEY
from nearcast.core.model.logs import LOGS_MAX, Log, problem_of
from nearcast.core.wire import bus

if TYPE_CHECKING:
    from nearcast.core.controller.members import Members
    from nearcast.core.controller.office import Office

WAITING_MAX = 1000


class Logs:
    """Changes the list of logs, one membership for all changes that wait, and answers when all brokers know."""

    def __init__(self, office: Office, members: Members) -> None:
        self._office = office
        self._ledger = office.ledger
        self._members = members
        self._waiting: dict[str, bus.AboutLogs] = {}  # requests that have not begun
        self._announced: dict[str, int] = {}  # requests that have, and the version that brokers must know
        self._done: deque[str] = deque(maxlen=WAITING_MAX)  # requests that were carried out: an answer may be lost

    def heard(self, message: bus.AboutLogs, now_s: float) -> None:
        if not self._ledger.journal.membership.ring:  # a young cluster may yet give way to an older one
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

    def _change(self, logs: dict[str, Log], message: bus.AboutLogs, version: int) -> bool:
        """Returns whether it is done; if not, that was answered. Repeating a request changes nothing."""
        if isinstance(message, bus.CreateLog):
            problem = _create(logs, msgspec.structs.replace(message.log, created=version))
        elif logs.pop(message.name, None) is None:
            problem = f"no log {message.name!r}; the cluster has: {', '.join(sorted(logs)) or 'none'}"
        else:
            problem = ""
        if problem:
            self._answer(message.request, problem)
        return not problem

    def _answer(self, request: str, problem: str = "") -> None:
        state = self._office.state(request, problem)
        self._office.reply(msgspec.structs.replace(state, logs=self._ledger.journal.membership.logs))


def _create(logs: dict[str, Log], log: Log) -> str:
    """Returns why not, in words; empty if it is there now."""
    known = logs.get(log.name)
    if known is not None:
        same = msgspec.structs.replace(log, created=known.created) == known
        return "" if same else f"there is a log {log.name!r} with other settings: drop it first, or choose another name"
    if len(logs) >= LOGS_MAX:
        return f"there are {LOGS_MAX} logs: drop one first"
    problem = problem_of(log)
    if not problem:
        logs[log.name] = log
    return problem
