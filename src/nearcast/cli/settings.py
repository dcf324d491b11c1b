"""Options that configure a cluster: how it plans, its timers, and how subscribers get their gateways.

Planning is the policy, its thresholds, and how far the cluster may grow. Only controllers have an option for timers;
all other processes use those of the leader. Subscribers' gateways depend on the rule that places new subscribers, on
balancing, and on its thresholds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.core.controller.subscribers import CoordinationSettings
    from nearcast.core.model.planning import Policy
    from nearcast.core.model.settings import Timing


# --- planning


PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy", metavar="NAME", help="What moves topics by itself: dynamoth, epulsar, hash_ring, or none."
    ),
]
ThresholdOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A threshold of the policy, such as lr_high=0.7. Repeatable."),
]
WaitOption = Annotated[
    float, typer.Option("--wait", min=0, metavar="SECONDS", help="Shortest time between two changes by the policy.")
]
BrokersMaxOption = Annotated[
    int,
    typer.Option(
        "--max-brokers", min=0, help="Ask the provider for brokers, up to this many in total; 0 never asks for any."
    ),
]

DEFAULT_WAIT_S = 10.0
PER_TOPIC = ("epulsar",)  # policies that judge each topic by itself
NO_POLICY = "none"


def chosen_policy(name: str, thresholds: list[str] | None, brokers_max: int = 0) -> Policy | None:
    """The policy of that name, with these thresholds."""
    from nearcast.policies.catalog import policy_named

    settings = settings_given("--set", thresholds, "lr_high=0.7")
    if name == NO_POLICY:
        if settings:
            raise UsageError("--set needs a policy: add --policy dynamoth")
        if brokers_max:
            raise UsageError("--max-brokers needs a policy to ask for brokers: add --policy dynamoth")
        return None
    return policy_named(name, settings)


def settings_given(option: str, texts: list[str] | None, example: str) -> dict[str, str]:
    """The values of a repeatable NAME=VALUE option. A name given twice is refused as ambiguous."""
    settings: dict[str, str] = {}
    for text in texts or []:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise UsageError(f"{option} {text}: write it as NAME=VALUE, for example {example}")
        if name in settings:
            raise UsageError(
                f"{option} {text}: {name} is given twice, first as {settings[name]}; leave one of them out"
            )
        settings[name] = value
    return settings


def planning_arguments(name: str, thresholds: list[str] | None, wait_s: float, brokers_max: int) -> list[str]:
    """The same options for a `nearcast controller` process; checked here, where the user sees errors."""
    chosen_policy(name, thresholds, brokers_max)
    arguments = ["--policy", name, "--wait", str(wait_s), "--max-brokers", str(brokers_max)]
    for threshold in thresholds or []:
        arguments += ["--set", threshold]
    return arguments


# --- timers


TimerOption = Annotated[
    list[str] | None,
    typer.Option(
        "--timer",
        metavar="NAME=SECONDS",
        help="heartbeat_s, lease_s, dead_s, ready_s, idle_s or leader_s, for the whole cluster. Repeatable.",
    ),
]


def chosen_timing(timers: list[str] | None) -> Timing:
    """The default timers, with these changed."""
    from nearcast.core.model.settings import Agreed, Timing

    names = (*Agreed.__struct_fields__, "leader_s")
    chosen: dict[str, float] = {}
    for name, value in settings_given("--timer", timers, "lease_s=5").items():
        if name not in names:
            raise UsageError(f"--timer {name}={value}: there is no timer {name}; choose from {', '.join(names)}")
        try:
            chosen[name] = float(value)
        except ValueError:
            raise UsageError(f"--timer {name}={value}: {value} is not a number of seconds") from None
    return Timing(**chosen)


def timer_arguments(timers: list[str] | None) -> list[str]:
    """The same option for a `nearcast controller` process; checked here, where the user sees errors."""
    chosen_timing(timers)
    return [part for text in timers or [] for part in ("--timer", text)]


# --- gateways of subscribers


PlacementOption = Annotated[
    str,
    typer.Option(
        "--placement",
        metavar="RULE",
        help="A new subscriber's gateway: nr (nearest), rr (round robin), rnd (random), ll (least loaded).",
    ),
]
BalanceOption = Annotated[
    str,
    typer.Option(
        "--balance",
        metavar="SCHEME",
        help="Move subscribers between gateways: ldm (to the least loaded), sdm (to the one that shares most "
        "subscriptions), or none.",
    ),
]
BalanceSetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--balance-set",
        metavar="NAME=VALUE",
        help="A threshold of balancing: alpha, beta_bytes_per_s, gamma, theta_bytes_per_s. Repeatable.",
    ),
]
BalanceEveryOption = Annotated[
    float, typer.Option("--balance-every", min=0.1, metavar="SECONDS", help="How often to check the gateways' balance.")
]

DEFAULT_PLACEMENT = "nr"
DEFAULT_BALANCE_S = 10.0
NO_BALANCE = "none"


def chosen_coordinating(
    placement: str, balance: str, thresholds: list[str] | None, every_s: float
) -> CoordinationSettings:
    """The settings; wrong ones are refused here, where the user sees errors."""
    from nearcast.core.controller.gateways import AssignmentRule
    from nearcast.core.controller.subscribers import CoordinationSettings
    from nearcast.policies.catalog import balancer_named

    if placement not in tuple(AssignmentRule):
        raise UsageError(f"there is no placement rule {placement!r}: choose one of {', '.join(AssignmentRule)}")
    settings = settings_given("--balance-set", thresholds, "alpha=0.1")
    if balance == NO_BALANCE and settings:
        raise UsageError("--balance-set needs a scheme: add --balance ldm")
    balancer = None if balance == NO_BALANCE else balancer_named(balance, settings)
    return CoordinationSettings(placement=AssignmentRule(placement), balancer=balancer, balance_s=every_s)


def balancing_arguments(placement: str, balance: str, thresholds: list[str] | None, every_s: float) -> list[str]:
    """The same options for a `nearcast controller` process."""
    chosen_coordinating(placement, balance, thresholds, every_s)
    arguments = ["--placement", placement, "--balance", balance, "--balance-every", str(every_s)]
    for threshold in thresholds or []:
        arguments += ["--balance-set", threshold]
    return arguments
