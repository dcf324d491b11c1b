"""What is done about replicas: clients wait for them, agents admit them, make them follow, and seal them.

WAIT counts the replicas that have everything a connection has written so far. After a mere reading it would count all
of them, so whatever is read and must be at the replicas is followed by a write.

A replica logs in as a user that was made for one run of its server, with a password for one life of its broker. A
server that was restarted does not know that user, so it cannot replace what its replica has by the nothing that it has
itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from urllib.parse import urlsplit

import msgspec

from nearcast.core.model.logs import Sealed
from nearcast.core.model.names import CLAIM_KEY, SEAL_KEY
from nearcast.core.wire.backend import OnDone, OnNumber, PartKeys
from nearcast.core.wire.link import Reply, is_error
from nearcast.core.wire.parts import PartLink
from nearcast.core.wire.scripts import CONFIRM

OnReplicas = Callable[[int | str, float], None]  # how many, or why the server does not say
OnText = Callable[[str, float], None]
DEFAULT_PORT = 6379


def admission_text(run_id: str, life: str) -> str:
    """What stands on a server whose agent has seen to it that only replicas of this run and this life are attached."""
    return f"{run_id} {life}"


class Admission(msgspec.Struct, frozen=True):
    """What a replica needs to follow a server."""

    run_id: str
    life: str  # of the broker, in this run
    url: str  # where replicas reach the server
    password: str

    @property
    def text(self) -> str:
        return admission_text(self.run_id, self.life)

    @property
    def user(self) -> str:
        return f"nc-replica-{self.run_id}"

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or DEFAULT_PORT


class ReplicaStatus(msgspec.Struct, frozen=True):
    """What a replica says of itself."""

    run_id: str
    sealed: str  # the life whose parts it holds
    follows: tuple[str, int] | None
    in_step: bool  # it is connected to the server that it follows


OnStatus = Callable[[ReplicaStatus, float], None]
OnSealed = Callable[[Sealed, float], None]


class ReplicationLink(PartLink):
    """A link on which replicas are waited for."""

    __slots__ = ()

    def wait(self, replicas: int, limit_s: float, then: OnReplicas) -> None:
        """How many replicas have what was written here, once there are enough or the time is over."""

        def waited(reply: Reply, now_s: float) -> None:
            then(reply if isinstance(reply, int) else str(reply), now_s)

        self.send(waited, "WAIT", replicas, int(limit_s * 1000))

    def read_admission(self, then: OnText) -> None:
        """The `admission_text` on the server."""
        self.send(lambda reply, now_s: then(_text(reply), now_s), "HGET", CLAIM_KEY, "replicas")

    def read_seal(self, then: OnText) -> None:
        """The life whose parts a replica holds; empty if it is not sealed."""
        self.send(lambda reply, now_s: then(_text(reply), now_s), "GET", SEAL_KEY)

    def confirm_number(self, keys: tuple[bytes, bytes], topic: bytes, publisher: int, then: OnNumber) -> None:
        """Like `read_number`, and a write."""

        def confirmed(reply: Reply, now_s: float) -> None:
            then(int(reply) if isinstance(reply, bytes) and reply.isdigit() else 0, now_s)

        self.send(confirmed, "EVAL", CONFIRM, 2, *keys, b"%b:%016x" % (topic, publisher))

    def touch_part(self, keys: PartKeys, then: OnDone) -> None:
        """A write that changes nothing, behind what was read of a part."""
        self.send(lambda _, now_s: then(now_s), "HSET", keys.cursors, "", "")

    # --- agents, on their own server

    def admit(self, admission: Admission, then: OnText) -> None:
        """See to it that replicas can attach as the user of this run, and in no other way; `then` gets what is wrong.

        Those that are attached already are cut off if this was not seen to before: nobody knows who they are.
        """
        wrong: list[str] = []
        user = ("reset", "on", f">{admission.password}", "+psync", "+replconf", "+ping")
        self.send(partial(_note_error, wrong), "ACL", "SETUSER", admission.user, *user)
        self.send(partial(_note_error, wrong), "ACL", "SETUSER", "default", "-psync", "-sync")
        self.send(None, "CONFIG", "SET", "repl-diskless-sync-delay", 0)  # not to wait for more replicas

        def read(before: str, now_s: float) -> None:
            if wrong:
                then(wrong[0], now_s)
                return
            if before != admission.text:
                self.send(partial(_note_error, wrong), "CLIENT", "KILL", "TYPE", "replica")
            self.send(lambda _, at_s: then("".join(wrong), at_s), "HSET", CLAIM_KEY, "replicas", admission.text)

        self.read_admission(read)

    # --- agents, on replicas

    def look_at_replica(self, then: OnStatus) -> None:
        """A `follow` behind this does nothing if the replica is sealed in between."""
        found: list[Reply] = []

        def looked(info: Reply, now_s: float) -> None:
            lines = lines_of(info)
            port = lines.get("master_port", "")
            follows = (lines.get("master_host", ""), int(port)) if port.isdigit() else None
            in_step = lines.get("master_link_status") == "up"
            then(ReplicaStatus(lines.get("run_id", ""), _text(found[0]), follows, in_step), now_s)

        self.send(None, "WATCH", SEAL_KEY)
        self.send(lambda reply, _: found.append(reply), "GET", SEAL_KEY)
        self.send(looked, "INFO")

    def leave_replica(self) -> None:
        """Nothing is to be done there."""
        self.send(None, "UNWATCH")

    def follow(self, admission: Admission) -> None:
        host, port = admission.address
        self.send(None, "MULTI")
        self.send(None, "CONFIG", "SET", "masteruser", admission.user)
        self.send(None, "CONFIG", "SET", "masterauth", admission.password)
        self.send(None, "REPLICAOF", host, port)
        self.send(None, "EXEC")

    def seal(self, life: str, then: OnSealed) -> None:
        """Stop the replica for good. Repeating it changes nothing; how far it had followed stays the same."""

        def sealed(reply: Reply, now_s: float) -> None:
            if isinstance(reply, list) and len(reply) == 3:  # otherwise it was made to follow again in between
                found, info = _text(reply[1]).rpartition(" ")[2], lines_of(reply[2])
                offset = int(info.get("second_repl_offset", "-1")) - 1
                then(Sealed(info.get("run_id", ""), found, offset), now_s)

        self.send(None, "REPLICAOF", "NO", "ONE")  # not in the transaction: a replica takes no writes, not even there
        self.send(None, "MULTI")
        self.send(None, "SET", SEAL_KEY, life)
        self.send(None, "HGET", CLAIM_KEY, "replicas")
        self.send(None, "INFO")
        self.send(sealed, "EXEC")


def _note_error(wrong: list[str], reply: Reply, now_s: float) -> None:
    if is_error(reply):
        wrong.append(str(reply))


def _text(reply: Reply) -> str:
    return reply.decode(errors="replace") if isinstance(reply, bytes) else ""


def lines_of(info: Reply) -> dict[str, str]:
    """The lines `name:value` of an INFO; none if it was refused."""
    text = info.decode(errors="replace") if isinstance(info, bytes) else ""
    return {name: value for name, colon, value in (line.partition(":") for line in text.splitlines()) if colon}
