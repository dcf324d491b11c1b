"""The commands, put together. Each file imports what is heavy inside its commands, so that `--help` is fast."""

from __future__ import annotations

import typer

from nearcast.cli import agent, brokers, controller, plan, topic, up

app = typer.Typer(
    name="nearcast",
    help="Publish/subscribe over ordinary Valkey and Redis servers, placed near the people who use it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("up")(up.up)
app.command("agent")(agent.agent)
app.command("controller")(controller.controller)
app.command("brokers")(brokers.brokers)
app.add_typer(topic.app, name="topic")
app.add_typer(plan.app, name="plan")
