"""`nearcast plan`: the whole mapping of topics to brokers."""

from __future__ import annotations

import time

import typer

from nearcast.cli.asking import ask_overview, ask_state
from nearcast.cli.options import DEFAULT_URL, Output, OutputOption, Url
from nearcast.cli.output import show
from nearcast.cli.running import run, say
from nearcast.cli.views import TOPIC_COLUMNS, topic_data, topic_row

app = typer.Typer(help="The whole mapping of topics to brokers.", no_args_is_help=True)


@app.callback()
def plan() -> None:
    """The whole mapping of topics to brokers."""


@app.command("show")
def show_plan(url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Show the plan: its version, who leads, and every topic that has a placement.

    Many topics come in parts, each as of the moment it was asked for; the version is that of the last part.

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


@app.command("decisions")
def decisions(url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Show what the policy has decided lately, and why: the measure, its value and the threshold it crossed.

    Example: nearcast plan decisions
    """
    state = run(lambda: ask_overview(url))
    rows = [(time.strftime("%H:%M:%S", time.localtime(decision.at_s)), decision.text) for decision in state.decisions]
    if not rows and output is Output.TABLE:
        say("nothing was decided yet: is a controller running with --policy?")
        return
    show(output, state.decisions, ("time", "decision"), rows)
