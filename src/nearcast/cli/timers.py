"""The option for the timers of a cluster. Controllers have it alone: everybody else goes by what the leader says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.planning import settings_given
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.core.settings import Timing

TimerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--timer",
        metavar="NAME=SECONDS",
        help="heartbeat_s, lease_s, dead_s, ready_s, idle_s or leader_s, for the whole cluster. Repeatable.",
    ),
]


def chosen_timing(timers: list[str] | None) -> Timing:
    """The defaults with these timers instead."""
    from nearcast.core.settings import Agreed, Timing

    names = (*Agreed.__struct_fields__, "leader_s")
    chosen: dict[str, float] = {}
    for name, value in settings_given("--timer", timers, "lease_s=5").items():
        if name not in names:
            raise UsageError(f"--timer {name}={value}: there is no timer {name}; choose from {', '.join(names)}")
        try:
            chosen[name] = float(value)
        except ValueError:
            raise UsageError(f"--timer {name}={value}: {value} is no number of seconds") from None
    return Timing(**chosen)


def timer_arguments(timers: list[str] | None) -> list[str]:
    """The same option for `nearcast controller` in a process of its own; checked here, where somebody reads errors."""
    chosen_timing(timers)
    return [part for text in timers or [] for part in ("--timer", text)]
