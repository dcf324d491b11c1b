"""Planted bugs of replicas: each removes one of the rules by which a quorum keeps what it has acknowledged."""

from __future__ import annotations

from typing import Any

from planting import LAGGING, REPLICATED, Patch, planting

from nearcast.core.client.keeping import FormerLanes, KeptLane
from nearcast.core.client.part_reader import PartReader
from nearcast.core.client.quorum import QuorumLink
from nearcast.core.controller import replicas as controller
from nearcast.core.wire.scripts import CONFIRM
from nearcast.sim import replicas
from nearcast.sim.valkey import commands
from nearcast.sim.valkey.replies import bulk

MUTATIONS, mutation = planting()


@mutation("invariant 12", LAGGING)
def an_answer_counts_before_its_wait(patch: Patch) -> None:
    """As if the script waited itself: there, WAIT returns at once."""

    def answered(self: QuorumLink, user: Any, replicas: int, then: Any, answer: Any, now_s: float) -> None:
        original(self, user, 0, then, answer, now_s)
        self._owed[replicas] -= 1
        self._owed[0] += 1
        if not self._owed[replicas]:
            del self._owed[replicas]

    original: Any = QuorumLink._answered
    patch.setattr(QuorumLink, "_answered", answered)


@mutation("invariant 12", LAGGING)
def what_was_kept_before_is_said_without_a_write(patch: Patch) -> None:
    def confirm(server: Any, keys: list[bytes], arguments: list[bytes]) -> bytes:
        found = [server.keys.fields(key).get(arguments[0]) for key in keys]
        return bulk(found[0] or found[1] or b"0")

    patch.setitem(commands.TWINS, CONFIRM, confirm)


@mutation("invariant 13", LAGGING)
def readers_take_what_only_one_server_has(patch: Patch) -> None:
    def ask(self: PartReader, question: Any, then: Any) -> None:
        assert self.link is not None
        question(self.link, then)

    patch.setattr(PartReader, "ask", ask)


@mutation("invariant 12", REPLICATED)
def a_replica_takes_over_the_nothing_of_a_server_that_was_restarted(patch: Patch) -> None:
    def may_follow(server: Any, user: bytes, password: bytes) -> bool:
        return bool(user) or original(server, user, password)

    original: Any = replicas.may_follow
    patch.setattr(replicas, "may_follow", may_follow)


@mutation("invariant 12", LAGGING)
def stray_replicas_count(patch: Patch) -> None:
    def may_follow(server: Any, user: bytes, password: bytes) -> bool:
        return not user or original(server, user, password)

    original: Any = replicas.may_follow
    patch.setattr(replicas, "may_follow", may_follow)


@mutation("invariant 12", REPLICATED)
def the_first_replica_that_is_sealed_holds(patch: Patch) -> None:
    def decided(self: Any, former: Any, membership: Any, now_s: float) -> Any:
        sealed = [key for key in self._sealed if key[0] == former.life]
        if sealed and former.state is controller.PartState.SEALING:
            return controller.msgspec.structs.replace(former, state=controller.PartState.HELD, url=sealed[0][1])
        return original(self, former, membership, now_s)

    original: Any = controller.Replicas._decided
    patch.setattr(controller.Replicas, "_decided", decided)


@mutation("invariant 12", REPLICATED)
def nobody_asks_the_holder_what_was_kept(patch: Patch) -> None:
    def ask_for_fate(self: FormerLanes, lane: KeptLane, now_s: float) -> None:
        self._topic_publisher.life_lost()
        self.answered(lane)

    patch.setattr(FormerLanes, "_ask_for_fate", ask_for_fate)
