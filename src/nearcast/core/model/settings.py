"""Timers and limits, with their units and the rules between them (PROTOCOL "Timers"), and a limit on rates."""

from __future__ import annotations

import msgspec

from nearcast.errors import UsageError

CLOCKS = 1.1  # how much two monotonic clocks may differ in speed
NEVER_S = float("-inf")  # when something happened that has not happened yet
LONGEST_S = 30 * 86400.0  # of any timer: anything longer was meant in another unit


class Agreed(msgspec.Struct, frozen=True, kw_only=True):
    """The timers that all processes of a cluster share, in seconds. They come from the leader, in the membership."""

    heartbeat_s: float = 0.5  # T_hb: between two lease questions of a client, and two beats of an agent
    lease_s: float = 2.5  # T_lease: how long a publisher trusts a server after the last question that was proven
    dead_s: float = 3.0  # T_dead: a broker without a grant for this long counts as fenced
    ready_s: float = 5.0  # T_ready: subscribers' time to hold the next placement before a move is forced
    idle_s: float = 300.0  # T_idle: what was not used for this long ends (PROTOCOL "How topics end")

    def __post_init__(self) -> None:
        for name, timer_s in msgspec.structs.asdict(self).items():
            if not 0 < timer_s <= LONGEST_S:
                raise UsageError(f"{name} is {timer_s:g} s: a timer must be above 0, and 30 days at most")
        _check_rules(
            (4 * self.heartbeat_s <= self.lease_s, "4 * heartbeat_s <= lease_s"),
            (self.lease_over_s < self.dead_s, f"{CLOCKS:g} * lease_s < dead_s"),
            (self.lease_s < 2 * self.idle_s, "lease_s < 2 * idle_s"),
        )

    @property
    def lease_over_s(self) -> float:
        """How long after a grant no client counts what the broker says, whatever the speed of its clock."""
        return CLOCKS * self.lease_s


class Timing(Agreed, frozen=True, kw_only=True):
    """Every timer of the protocol, in seconds. The rules between them are checked on construction.

    Those of `Agreed` are chosen by controllers: clients and agents use the membership's once they have read it.
    """

    linger_s: float = 0.5  # how long a fenced attachment is kept: late frames cost nothing (speed only)
    gap_s: float = 1.0  # T_gap: time for a repair before a Gap is reported
    resync_s: float = 0.4  # between two repair requests for the same hole
    block_s: float = 1.0  # T_block: how long a full mailbox may stop the socket
    retry_s: float = 0.3  # an unanswered order or question is sent again after this long
    reconnect_min_s: float = 0.05
    reconnect_max_s: float = 2.0
    leader_s: float = 1.0  # a leader that does not renew for this long is replaced
    lazy_s: float = 1.0  # T_lazy: how much later than asked a lazy move may begin

    def __post_init__(self) -> None:
        Agreed.__post_init__(self)
        _check_rules(
            (self.block_s < self.ready_s, "block_s < ready_s"),
            (self.resync_s < self.gap_s, "resync_s < gap_s"),
            (self.leader_s < self.lease_s, "leader_s < lease_s"),
            (self.gap_s < self.idle_s, "gap_s < idle_s"),
        )

    @property
    def agreed(self) -> Agreed:
        """The timers that a leader with these settings gives to everyone."""
        return Agreed(**{name: getattr(self, name) for name in Agreed.__struct_fields__})

    def within(self, agreed: Agreed) -> Timing:
        """These timers in a cluster that uses others: ours are adapted where a rule ties them to the cluster's."""
        gap_s = _below(agreed.idle_s, self.gap_s)
        return msgspec.structs.replace(
            self,
            **msgspec.structs.asdict(agreed),
            block_s=_below(agreed.ready_s, self.block_s),
            leader_s=_below(agreed.lease_s, self.leader_s),
            gap_s=gap_s,
            resync_s=_below(gap_s, self.resync_s),
        )


def _below(bound_s: float, own_s: float) -> float:
    return own_s if own_s < bound_s else bound_s / 2


def _check_rules(*rules: tuple[bool, str]) -> None:
    for kept, rule in rules:
        if not kept:
            raise UsageError(f"timers break the rule {rule}")


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much a client keeps; docs/guarantees.md says what happens at each limit."""

    payload_bytes: int = 1 << 20
    window: int = 4096  # unacknowledged messages per topic: publish waits, publish_nowait raises
    window_bytes: int = 16 << 20
    ring: int = 1024  # acknowledged messages kept per topic for repairs
    ring_bytes: int = 4 << 20
    held: int = 8192  # frames per topic waiting for an older fence or a repair
    mailbox: int = 65536  # messages waiting for the application, per subscription
    mailbox_bytes: int = 64 << 20
    topics: int = 100_000  # topics one client publishes or subscribes
    attaching: int = 4096  # records asked for on one link before it waits for answers; further topics wait in line
    attended: int = 1000  # topics handled in one tick; with more, timers are late

    def __post_init__(self) -> None:
        rules = (
            (self.window >= 1, "window >= 1"),
            (self.mailbox >= 1, "mailbox >= 1"),
            (self.attaching >= 1, "attaching >= 1"),
            (self.attended >= 1, "attended >= 1"),
            (self.ring_bytes < self.window_bytes, "ring_bytes < window_bytes"),  # or a full ring would leave no room
        )
        for kept, rule in rules:
            if not kept:
                raise UsageError(f"limits break the rule {rule}")


DEFAULT_TIMING = Timing()
DEFAULT_LIMITS = Limits()


# --- rates


class RateLimit:
    """Limits a rate: an amount at once, and then an amount per second."""

    __slots__ = ("_burst", "_per_s", "_room", "_seen_s")

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s = per_s
        self._burst = self._room = burst
        self._seen_s: float | None = None

    def room(self, now_s: float) -> float:
        """How much may be spent now."""
        if self._seen_s is not None:
            self._room = min(self._burst, self._room + self._per_s * (now_s - self._seen_s))
        self._seen_s = now_s
        return self._room

    def spend(self, amount: float) -> None:
        """Spend an amount. If it is more than there was room for, the difference is waited for later."""
        self._room -= amount
