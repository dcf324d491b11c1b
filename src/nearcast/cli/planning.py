"""Options that say how a cluster plans: the policy, its thresholds, and how far the cluster may grow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.core.proposal import Policy

PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy", metavar="NAME", help="Who decides where topics go: dynamoth, hash_ring, or none (only you do)."
    ),
]
ThresholdOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A threshold of the policy, such as lr_high=0.7. Repeatable."),
]
WaitOption = Annotated[
    float, typer.Option("--wait", min=0, metavar="SECONDS", help="Between two changes of the plan by the policy.")
]
BrokersMaxOption = Annotated[
    int, typer.Option("--max-brokers", min=0, help="Ask the provider for more brokers up to so many in all; 0: never.")
]

DEFAULT_WAIT_S = 10.0
NO_POLICY = "none"


def chosen_policy(name: str, thresholds: list[str] | None, brokers_max: int = 0) -> Policy | None:
    """The policy of that name, with these thresholds."""
    from nearcast.policies.catalog import policy_named

    settings = settings_given("--set", thresholds, "lr_high=0.7")
    if name == NO_POLICY:
        if settings:
            raise UsageError("--set needs a policy: add --policy dynamoth")
        if brokers_max:
            raise UsageError("--max-brokers needs a policy, which asks for more brokers: add --policy dynamoth")
        return None
    return policy_named(name, settings)


def settings_given(option: str, texts: list[str] | None, example: str) -> dict[str, str]:
    """What a repeatable NAME=VALUE says. A name that is given twice is refused: nobody knows which value is meant."""
    settings: dict[str, str] = {}
    for text in texts or []:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals:
            raise UsageError(f"{option} {text}: write it as NAME=VALUE, for example {example}")
        if name in settings:
            raise UsageError(
                f"{option} {text}: {name} is given twice, before as {settings[name]}; leave one of them out"
            )
        settings[name] = value
    return settings


def planning_arguments(name: str, thresholds: list[str] | None, wait_s: float, brokers_max: int) -> list[str]:
    """The same options for `nearcast controller` in a process of its own; checked here, where somebody reads errors."""
    chosen_policy(name, thresholds, brokers_max)
    arguments = ["--policy", name, "--wait", str(wait_s), "--max-brokers", str(brokers_max)]
    for threshold in thresholds or []:
        arguments += ["--set", threshold]
    return arguments
