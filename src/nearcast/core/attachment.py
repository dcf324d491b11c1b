"""An attachment: one subscriber's hold of one topic at one broker (PROTOCOL, subscriber rules 1 and 4)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from nearcast.core.names import readiness_channel

if TYPE_CHECKING:
    from nearcast.core.backend import ClientLink
    from nearcast.core.inflow import Inflow


_NONE: frozenset[int] = frozenset()  # one for all: most topics rest where they are


class Attachment:
    """Roles are the epochs whose frames are expected here. A fence takes away the roles below it, for good."""

    __slots__ = (
        "_inflow",
        "broker",
        "fenced",
        "floor",
        "linger_until_s",
        "link",
        "open",
        "proven",
        "ready",
        "roles",
        "unconfirmed",
    )

    def __init__(self, inflow: Inflow, broker: str) -> None:
        self._inflow = inflow
        self.broker = broker
        self.link: ClientLink | None = None
        self.open = False  # subscribed, and the record of this broker was read after that
        self.unconfirmed = False  # the broker has no record of a topic that lives there by first use
        self.roles: tuple[int, ...] = ()
        self.fenced = 0  # the newest epoch this broker has switched to
        self.floor = 0
        self.linger_until_s: float | None = None
        self.ready = _NONE  # epochs whose readiness channel is held here
        self.proven = _NONE  # epochs whose readiness ran here before their fence

    def frames(self, payloads: list[bytes], now_s: float) -> None:
        self._inflow.frames(self, payloads, now_s)

    @property
    def newest(self) -> int:
        upcoming = self._inflow.upcoming
        return max(self._inflow.epoch, upcoming.epoch if upcoming is not None else 0)

    def admits(self, epoch: int) -> bool:
        return epoch in self.roles

    def give(self, role: int) -> None:
        if role >= self.fenced:
            if role not in self.roles:
                self.roles += (role,)
            self.linger_until_s = None

    def fence(self, epoch: int) -> None:
        """This broker has switched to the epoch."""
        if epoch > self.fenced:
            self.fenced = epoch
            self.roles = tuple(role for role in self.roles if role >= epoch)

    def awaits_fence(self, epoch: int) -> bool:
        """Whether frames of an older epoch than this may still come from here."""
        return self.open and self.fenced < epoch and bool(self.roles) and min(self.roles) < epoch

    def leased(self, now_s: float) -> bool:
        return self.link is not None and now_s <= self.link.lease_until_s

    def lose(self) -> None:
        self.link = None
        self.open = self.unconfirmed = False
        self.ready = self.proven = _NONE
        self.fenced = self.floor = 0  # the record is read again after the next subscribe

    def say_ready(self, topic: bytes, epoch: int) -> bool:
        """Hold the readiness channel of the epoch here. Returns whether that is new."""
        if self.link is None or not self.open or epoch in self.ready or epoch <= self.fenced:
            return False
        self.ready |= {epoch}
        self.link.subscribe(readiness_channel(topic, epoch), refused=partial(self._inflow.denied, self, self.link))
        return True

    def stale_readiness(self, topic: bytes, before: int) -> list[bytes]:
        """The readiness channels of epochs up to `before`, which are given back."""
        stale = [epoch for epoch in self.ready if epoch <= before]
        self.ready = self.ready.difference(stale)
        return [readiness_channel(topic, epoch) for epoch in stale]
