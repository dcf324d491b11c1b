"""`nearcast topic bound|explain`, `nearcast brokers distances`: how long messages may take, and how far things are."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.shared import DEFAULT_URL, Output, OutputOption, Url, ask_overview, run, say, show
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.core.model.bounds import Bound
    from nearcast.core.model.distances import Spread, TopicDistances
    from nearcast.core.model.planning import Explanation

BOUND_COLUMNS = ("topics", "bound", "percentile")
DISTANCE_COLUMNS = ("worst ms", "p90 ms", "bound")
SPREAD_COLUMNS = ("publishers", "subscribers")

_TIME = re.compile(r"(\d+(?:\.\d+)?)(ms|s)")
_UNITS_S = {"ms": 1e-3, "s": 1.0}


def bound(
    topics: Annotated[str, typer.Argument(metavar="[TOPIC|PATTERN]", help="Leave it out to list all bounds.")] = "",
    time: Annotated[str, typer.Argument(metavar="[TIME]", help="One way, such as 40ms.")] = "",
    percentile: Annotated[
        float | None,
        typer.Option("--percentile", metavar="P", help="For this share of publishers and subscribers. Default: all."),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the bound.")] = False,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Set how long the messages of topics may take.

    A controller with --policy epulsar then keeps each topic on a broker that is near enough to its clients. The bound
    is for the network alone, one way from a publisher to a subscriber. A topic's own bound counts; otherwise that of
    the longest pattern that matches.

    Example: nearcast topic bound 'swarm.*' 40ms
    """
    if not topics:
        bounds = run(lambda: ask_overview(url)).bounds
    else:
        bounds = run(lambda: _set(url, topics, None if remove else bound_named(time, percentile), given=time))
    if not bounds and output is Output.TABLE:
        say("no topic has a bound: set one with `nearcast topic bound TOPIC 40ms`")
        return
    rows = [(name, f"{one.seconds * 1e3:g} ms", _percentile(one)) for name, one in sorted(bounds.items())]
    show(output, {"bounds": bounds}, BOUND_COLUMNS, rows)


def bound_named(time: str, percentile: float | None) -> Bound:
    """What a person means by a time and a percentile. Raises UsageError."""
    from nearcast.core.model.bounds import Bound

    found = _TIME.fullmatch(time.strip().lower())
    if found is None:
        raise UsageError(f"{time or 'no time'}: write a number and a unit, such as 40ms or 0.2s; or use --remove")
    return Bound(float(found[1]) * _UNITS_S[found[2]], percentile)


async def _set(url: str, topics: str, bound: Bound | None, *, given: str) -> dict[str, Bound]:
    from nearcast.runtime.console import Console

    if bound is None and given:
        raise UsageError("--remove takes no time")
    async with Console(url) as console:
        return await console.set_bound(topics, bound)


def _percentile(bound: Bound) -> str:
    return "all pairs" if bound.percentile is None else f"{bound.percentile:g} %"


def explain(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")], url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE
) -> None:
    """Show why a topic is where it is.

    All brokers are ranked as the policy ranks them, each with what rules it out.

    Example: nearcast topic explain swarm.7
    """
    found = run(lambda: _explain(url, topic))
    here = ", ".join(found.brokers)
    limit = f"the bound is {found.bound}" if found.bound is not None else "it has no bound"
    title = f"{topic} is on {here}: {_ms(found.latency_s)} ms, {limit}" + (f"; {found.stays}" if found.stays else "")
    rows = [
        (one.broker + " *" * (one.broker in found.brokers), _ms(one.latency_s), one.ruled_out or "-")
        for one in found.candidates
    ]
    show(output, found, ("broker", "latency ms", "ruled out by"), rows, title)


async def _explain(url: str, topic: str) -> Explanation:
    from nearcast.core.model.names import encode_topic
    from nearcast.runtime.console import Console

    encode_topic(topic)
    async with Console(url) as console:
        return await console.explain(topic)


def distances(url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Show how far brokers are from each other.

    Agents measure it with small UDP datagrams. The figures are round trips in milliseconds, each as the broker at the
    beginning of the row has measured it.

    Example: nearcast brokers distances
    """
    state = run(lambda: ask_overview(url))
    names = sorted(name for name, view in state.brokers.items() if view.state in ("member", "leaving"))
    if not state.round_trips_s and output is Output.TABLE:
        say("nothing is measured yet: agents need a few seconds, and another broker to measure; is UDP let through?")
        return
    rows = [(name, *(_ms(state.round_trips_s.get(name, {}).get(other)) for other in names)) for name in names]
    show(output, {"round_trips_s": state.round_trips_s}, ("broker", *names), rows)


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.1f}"


def distance_row(found: TopicDistances | None, bound: Bound | None) -> tuple[str, ...]:
    """What is added to a topic's row."""
    worst_s, p90_s = (None, None) if found is None else (found.now.worst_s, found.now.p90_s)
    return _ms(worst_s), _ms(p90_s), str(bound) if bound is not None else "-"


def spread_row(found: TopicDistances | None) -> tuple[str, ...]:
    """What is added to it if it is known of any topic where its clients are."""
    return ("-", "-") if found is None else (_near(found.publishers), _near(found.subscribers))


def _near(found: Spread | None) -> str:
    return "-" if found is None else f"{found.near} of {found.count} near {found.broker}"
