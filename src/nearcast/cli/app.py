"""All commands in one app. Each module imports heavy modules inside its commands, so that `--help` is fast."""

from __future__ import annotations

from typing import Annotated

import typer

from nearcast.cli import (
    agent,
    bench,
    brokers,
    channel,
    controller,
    data,
    dataset,
    demo,
    feed,
    log,
    report,
    reproduce,
    simulate,
    store,
    subscribers,
    topic,
    up,
    users,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(version("nearcast"))
        raise typer.Exit


app = typer.Typer(
    name="nearcast",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def nearcast(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Publish/subscribe over ordinary Valkey and Redis servers, placed near the people who use it."""


app.command("up")(up.up)
app.command("demo")(demo.demo)
app.command("agent")(agent.agent)
app.command("controller")(controller.controller)
app.add_typer(brokers.app, name="brokers")
app.add_typer(topic.app, name="topic")
app.add_typer(log.app, name="log")
app.add_typer(subscribers.app, name="subscribers")
app.add_typer(users.app, name="users")
app.add_typer(topic.plan_app, name="plan")
app.add_typer(store.app, name="store")
app.add_typer(data.app, name="data")
app.add_typer(channel.app, name="channel")
app.add_typer(feed.app, name="feed")
app.add_typer(dataset.app, name="dataset")
app.command("report")(report.report)
app.add_typer(bench.app, name="bench")
app.add_typer(simulate.app, name="simulate")
app.add_typer(reproduce.app, name="reproduce")
