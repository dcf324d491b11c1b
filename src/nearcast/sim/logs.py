"""The logs of a simulated world: the operator creates and drops them, and checkers know since when they must keep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from nearcast.core.model.journal import MEMBERSHIP_KEY, decode_entry
from nearcast.core.model.logs import Log
from nearcast.core.model.membership import Membership
from nearcast.core.model.names import MEMBERS
from nearcast.core.wire import bus
from nearcast.sim.faults import Profile
from nearcast.sim.script import Drop, Keep

if TYPE_CHECKING:
    from nearcast.sim.world import World

FOR_LONG_S = 60.0  # longer than any run
MUCH_BYTES = 1 << 30  # more than is published in any run


class Kept(msgspec.Struct):
    """A log that all brokers know, or knew."""

    log: Log
    since_s: float  # from then on everything must be kept,
    until_s: float | None = None  # and no longer from the moment on in which somebody asked to drop it

    def owes(self, topic: bytes, published_s: float, acknowledged_s: float) -> bool:
        """Whether a message must be in it."""
        ended = self.until_s is not None and acknowledged_s >= self.until_s
        return self.log.covers(topic) and published_s > self.since_s and not ended

    @property
    def expires(self) -> bool:
        """Whether retention removes something during the run."""
        return self.log.retain_s < FOR_LONG_S or self.log.retain_bytes < MUCH_BYTES


class Logs:
    """Carries out the steps of the script that are about logs. `all`: by key."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.all: dict[str, Kept] = {}

    def carry_out(self, step: Keep | Drop) -> bool:
        """Ask until all brokers know: a leader may be deposed with the question. Returns whether they do."""
        membership = self._membership()
        if membership is None:
            return False
        log = next((log for log in membership.logs if log.name == step.name), None)
        if isinstance(step, Drop):
            return self._drop(step, membership, log)
        if log is None:
            quorum = step.quorum or self._world.setup.quorum
            wanted = Log(step.name, 0, (step.topics,), step.retain_s, step.retain_bytes, quorum)
            self._world.operator.ask(bus.CreateLog(f"keep {step.name} {step.at_s}", wanted))
        elif self._all_know(membership):
            self.all[log.key] = Kept(log, self._world.timeline.now_s)
            return True
        return False

    @property
    def all_read_by_groups(self) -> bool:
        """Whether a group reads each log that there will be; one at least."""
        setup = self._world.setup
        read = {read.log for read in setup.reads if read.group} | ({"kept"} if setup.members else set())
        return bool(read) and {step.name for step in setup.script if isinstance(step, Keep)} <= read

    def quorum_of(self, key: str) -> int:
        return self.all[key].log.quorum if key in self.all else self._world.setup.quorum

    def is_limited_in_bytes(self, key: str) -> bool:
        return key in self.all and self.all[key].log.retain_bytes < MUCH_BYTES

    def is_dropped(self, key: str) -> bool:
        """Whether the log is gone, by a request, or because all who knew it have lost their memory."""
        membership = self._membership()
        there = membership is None or any(log.key == key for log in membership.logs)
        forgotten = not there and self._world.history.memory_lost and self._world.plan.profile is Profile.LOSS
        return forgotten or (key in self.all and self.all[key].until_s is not None)

    def expires(self, key: str) -> bool:
        """Whether retention may have removed something."""
        return key in self.all and self.all[key].expires

    def _drop(self, step: Drop, membership: Membership, log: Log | None) -> bool:
        if log is None:
            return self._all_know(membership)
        kept = self.all[log.key]
        kept.until_s = kept.until_s or self._world.timeline.now_s
        self._world.operator.ask(bus.DropLog(f"drop {step.name} {self._world.timeline.now_s}", step.name))
        return False

    def _membership(self) -> Membership | None:
        value = self._world.store.load_now()[1].get(MEMBERSHIP_KEY)
        membership = decode_entry(MEMBERSHIP_KEY, value) if value is not None else None
        return membership if isinstance(membership, Membership) else None

    def _all_know(self, membership: Membership) -> bool:
        servers = [self._world.hosts[broker].server for broker in membership.brokers]
        wanted = b"%d" % membership.logs_version
        return all(server.keys.fields(MEMBERS).get(b"logs") == wanted for server in servers)
