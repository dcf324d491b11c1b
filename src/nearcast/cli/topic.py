"""`nearcast topic` and `nearcast plan`: where topics are, moving them, and the whole mapping of topics to brokers."""

from __future__ import annotations

import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.bounds import DISTANCE_COLUMNS, SPREAD_COLUMNS, bound, distance_row, explain, spread_row
from nearcast.cli.shared import (
    DEFAULT_URL,
    TOPIC_COLUMNS,
    Output,
    OutputOption,
    Url,
    ask_overview,
    ask_state,
    name_list,
    run,
    say,
    show,
    topic_data,
    topic_row,
)
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nearcast.core.model.bounds import Bound
    from nearcast.core.wire.views import TopicState


app = typer.Typer(help="Show where topics are, and move them.", no_args_is_help=True)


class MoveMode(StrEnum):
    """The modes that an operator may choose. A test compares them with `Mode`, which is slow to import."""

    SINGLE = "single"
    ALL_SUBSCRIBERS = "all_subscribers"
    ALL_PUBLISHERS = "all_publishers"


# --- topic


@app.command("move")
def move(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    to: Annotated[str, typer.Option("--to", metavar="BROKER[,BROKER...]", help="The brokers to carry it.")],
    mode: Annotated[MoveMode, typer.Option("--mode", help="How they share it.")] = MoveMode.SINGLE,
    lazy: Annotated[bool, typer.Option("--lazy", help="Begin up to a second later, to spread moves out.")] = False,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the move has ended.")] = True,
    timeout_s: Annotated[float, typer.Option("--timeout", metavar="SECONDS", min=0.1, help="Total time limit.")] = 30.0,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move a topic to other brokers while its messages flow.

    The topic then stays there when other brokers join or leave and while it is unused, even if it was there before.
    Only a policy, or the departure of its own broker, still moves it.

    Example: nearcast topic move scores --to b1,b2 --mode all_subscribers
    """
    state = run(lambda: _move(url, topic, to, mode, lazy=lazy, wait=wait, timeout_s=timeout_s))
    show(output, {"topic": topic, **topic_data(state)}, TOPIC_COLUMNS, [topic_row(topic, state)])


async def _move(
    url: str, topic: str, to: str, mode: MoveMode, *, lazy: bool, wait: bool, timeout_s: float
) -> TopicState:
    from nearcast.core.model.journal import Pace
    from nearcast.core.model.placement import Mode, Placement, problems
    from nearcast.runtime.console import Console

    if any(sign in topic for sign in "*?["):
        raise UsageError(f"topic {topic!r}: topics are moved by name, not by pattern; name each of them")
    placement = Placement(0, Mode(mode), name_list("broker", to))
    # Ask first: a missing controller is noticed early, and an impossible placement is the caller's mistake.
    state = await ask_state(url, topic)
    found = problems(placement, frozenset(state.brokers))
    if found:
        raise UsageError(f"topic {topic!r}: {'; '.join(found)}")
    pace = Pace.LAZY if lazy else Pace.EAGER
    async with Console(url) as console:
        return await console.move(topic, placement.mode, placement.brokers, pace=pace, wait=wait, timeout_s=timeout_s)


@app.command("show")
def show_topics(
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC")] = None,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show where topics are: those named, or all that have been placed.

    Beside each is how long its messages take one way, by the network alone: for the publisher and subscriber that are
    farthest from its broker, and for 90 % of all pairs, as far as clients have measured it. Where that is known, the
    last columns say how many publishers and subscribers it has, and which broker most of them are nearest to.

    A long list is fetched in parts, each as of the time of its request.

    Example: nearcast topic show scores chat
    """
    found = run(lambda: ask_state(url, *(topics or ())))
    bounds = _bounds_of(found.bounds, found.topics)
    data = {
        "topics": {
            topic: {**topic_data(state), "distances": found.distances.get(topic), "bound": bounds[topic]}
            for topic, state in found.topics.items()
        }
    }
    columns = (*TOPIC_COLUMNS, *DISTANCE_COLUMNS, *(SPREAD_COLUMNS if found.distances else ()))
    rows = [
        (
            *topic_row(topic, state),
            *distance_row(found.distances.get(topic), bounds[topic]),
            *(spread_row(found.distances.get(topic)) if found.distances else ()),
        )
        for topic, state in sorted(found.topics.items())
    ]
    show(output, data, columns, rows)


def _bounds_of(bounds: dict[str, Bound], topics: Iterable[str]) -> dict[str, Bound | None]:
    from nearcast.core.model.bounds import BoundsOfTopics

    known = BoundsOfTopics(bounds)
    return {topic: known.of(topic) for topic in topics}


app.command("bound")(bound)
app.command("explain")(explain)


# --- plan


plan_app = typer.Typer(help="Show the plan, and the decisions behind it.", no_args_is_help=True)


@plan_app.callback()
def plan() -> None:
    """Show the plan, and the decisions behind it."""


@plan_app.command("show")
def show_plan(url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Show every topic that has a placement.

    It also shows the version of the plan, and the leader.

    A long list is fetched in parts, each as of the time of its request; the version is that of the last part.

    Example: nearcast plan show --output json
    """
    state = run(lambda: ask_state(url))
    data = {
        "version": state.version,
        "leader": state.leader,
        "term": state.term,
        "topics": {topic: topic_data(view) for topic, view in state.topics.items()},
    }
    title = f"version {state.version}, led by {state.leader} in term {state.term}"
    show(output, data, TOPIC_COLUMNS, [topic_row(topic, view) for topic, view in sorted(state.topics.items())], title)


@plan_app.command("decisions")
def decisions(url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Show the policy's latest decisions and their reasons.

    A reason is a measure, its value and the threshold it crossed.

    Example: nearcast plan decisions
    """
    state = run(lambda: ask_overview(url))
    rows = [(time.strftime("%H:%M:%S", time.localtime(decision.at_s)), decision.text) for decision in state.decisions]
    if not rows and output is Output.TABLE:
        say("nothing has been decided yet: is a controller running with --policy?")
        return
    show(output, state.decisions, ("time", "decision"), rows)
