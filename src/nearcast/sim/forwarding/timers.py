"""The two times the paper names without giving their length, and one it does not have."""

from __future__ import annotations

import msgspec

from nearcast.errors import UsageError


class Timers(msgspec.Struct, frozen=True, kw_only=True):
    """In seconds."""

    # Section IV.A.5: a client forgets a topic it has not used for so long, and the dispatcher of the former server
    # stops listening so long after the plan. Several times the slowest round trip of the simulated network.
    forget_s: float = 2.0

    # T_wait of section III.B: between two plans that move the same topic, "to make sure that most of the configuration
    # overhead of the last plan change is completed". Not shorter than the other: one move is over before the next.
    wait_s: float = 2.0

    # How long a subscriber stays at the old server after the new one has confirmed. The paper has it leave at once.
    linger_s: float = 0.0

    def __post_init__(self) -> None:
        if self.forget_s <= 0 or self.wait_s < 0 or self.linger_s < 0:
            raise UsageError("forget_s must be longer than nothing, wait_s and linger_s not negative")
