"""The claim on a server: one agent at a time works there, for one broker (PROTOCOL, agent rule 1)."""

from __future__ import annotations

from nearcast.core.model.names import claim_channel
from nearcast.core.model.settings import Timing
from nearcast.core.wire.backend import AgentLink, OnClaim


class Claim:
    """One agent's claim, or its wait for it.

    A key on the server names the holder and counts its beats. The holder also subscribes to a channel of its own on the
    connection it works with. When the process ends, that subscription ends with it, and the next agent to ask becomes
    the holder. A connection may stay open with no process behind it, so a holder whose beats stop for T_dead loses the
    claim too.
    """

    def __init__(self, broker: str, agent_id: int, url: str, timing: Timing) -> None:
        self._broker = broker
        self._me = f"{broker}:{agent_id:016x}"
        self._url = url
        self.timing = timing
        self.held = False
        self._other: tuple[str, int] | None = None  # the holder and its beat, if it is not us
        self._seen_s = 0.0  # since when it has been at this beat
        self._lives = False  # we have seen its beat change

    def ask(self, link: AgentLink, now_s: float, then: OnClaim) -> None:
        """Take the claim if it is free, or beat if it is ours."""
        stale = -1
        if self._other is not None and now_s - self._seen_s > self.timing.dead_s:
            stale = self._other[1]
        link.claim(self._me, stale, then)

    def attend(self, link: AgentLink) -> None:
        """Make our presence visible, before the claim is asked for."""
        link.subscribe(claim_channel(self._me))

    def answered(self, holder: str, beat: int, now_s: float) -> None:
        self.held = holder == self._me
        if self.held:
            self._other, self._lives = None, False
        elif self._other != (holder, beat):
            self._lives = self._other is not None and self._other[0] == holder
            self._other, self._seen_s = (holder, beat), now_s

    @property
    def problem(self) -> str:
        """Which agent has the claim, in words; empty if we do."""
        if self._other is None:
            return ""
        broker = self._other_broker
        if broker == self._broker:
            return f"server {self._url} has another agent of broker {broker}: waiting until it is gone"
        return (
            f"server {self._url} belongs to broker {broker}, whose agent is running:"
            f" start the agent of {self._broker} with its own server, or stop the other agent first"
        )

    @property
    def wrong(self) -> bool:
        """Whether a running agent of another broker has the claim, so that waiting is useless."""
        return self._lives and self._other_broker != self._broker

    @property
    def _other_broker(self) -> str:
        return self._other[0].rpartition(":")[0] if self._other is not None else ""
