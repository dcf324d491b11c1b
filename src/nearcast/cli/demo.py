"""`nearcast demo`: topics that move, a policy at work, topics that follow players, and channels on Spark, shown live.

`Backstage` prepares the last act, which needs Spark, while the acts before it are played.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearcast.cli.shared import (
    Output,
    OutputOption,
    errors_as_exit_codes,
    name_server,
    print_json,
    print_table,
    run,
    say,
    until_told_to_stop,
)
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.cli.demo_views.look import Look
    from nearcast.cli.demo_views.view import View
    from nearcast.demo.act import Act, Summary
    from nearcast.demo.moves import MovesPlan
    from nearcast.workloads.emergency.run import EmergencyPlan
    from nearcast.workloads.emergency.stage import EmergencyStage


CLIENTS_MIN = 36  # a test compares it with the demo's, which is slow to import


class ActName(StrEnum):
    MOVES = "moves"
    POLICY = "policy"
    PLACES = "places"
    CHANNELS = "channels"
    ALL = "all"


# --- the command


def demo(
    context: typer.Context,
    act: Annotated[ActName, typer.Option("--act", help="Which act to play.")] = ActName.ALL,
    seconds: Annotated[
        float,
        typer.Option("--seconds", min=1, help="How long act 1 lasts. Act 2 ends when the policy has done its work."),
    ] = 20,
    clients: Annotated[
        int, typer.Option("--clients", min=CLIENTS_MIN, max=240, help="In act 1: half publish, half subscribe.")
    ] = 48,
    seed: Annotated[int, typer.Option("--seed", min=0, help="For moves, kills, network and traffic.")] = 0,
    output: OutputOption = Output.TABLE,
) -> None:
    """Watch topics move and follow people, and Spark notify them.

    It counts what subscribers notice.

    Act 1, moves: three emulated sites; topics keep moving, and agents and the controller are killed now and then.

    Act 2, policy: people come and go; servers are added, hot topics are replicated, and both are undone; about 50 s.

    Act 3, places: two groups of players swap continents; topics with a latency bound follow them, beside twins that
    stay where hashing puts them; about 25 s.

    Act 4, channels: people get notifications that Spark computes, and move between gateways, in about a minute.
    Without the packages or the memory for Spark, this act is left out.

    Each act starts a cluster on this machine and stops it, even on Ctrl-C. The exit code is 1 if a message was lost,
    duplicated or reordered, or if an act did not show what it should.

    Example: nearcast demo --act moves --seconds 20 --seed 7
    """
    from nearcast.demo.moves import MovesPlan

    with errors_as_exit_codes():
        names = _chosen(act)
        _check(context, names)
        plan = MovesPlan(seconds, clients, seed)
    name_server()
    summaries = run(lambda: _demo(names, plan, output))
    if output is Output.JSON:
        print_json({"ok": _ok(summaries), "acts": summaries})
    _say_what_is_wrong(summaries)
    raise typer.Exit(0 if _ok(summaries) else 1)


def _chosen(act: ActName) -> tuple[ActName, ...]:
    """The acts to play. One that cannot be played here is left out, unless it is the only one asked for."""
    everything: tuple[ActName, ...] = (ActName.MOVES, ActName.POLICY, ActName.PLACES, ActName.CHANNELS)
    names = everything if act is ActName.ALL else (act,)
    problem = obstacle() if ActName.CHANNELS in names else ""
    if problem and act is not ActName.ALL:
        raise UsageError(f"act 4 cannot be played: {problem}")
    if problem:
        say(f"act 4 is left out: {problem}")
        names = names[:-1]
    return names


def _check(context: typer.Context, names: tuple[ActName, ...]) -> None:
    """Report what cannot work before anything is started."""
    if ActName.POLICY in names:
        from nearcast.cli.settings import chosen_policy
        from nearcast.demo.policy import POLICY, THRESHOLDS

        chosen_policy(POLICY, list(THRESHOLDS))
    if ActName.PLACES in names:
        from nearcast.cli.settings import chosen_policy
        from nearcast.demo import places

        chosen_policy(places.POLICY, [])
    if ActName.MOVES not in names:
        for option in ("seconds", "clients"):
            source = context.get_parameter_source(option)
            if source is not None and source.name == "COMMANDLINE":
                raise UsageError(f"--{option} is for act 1, which --act {names[0]} leaves out: drop one of the two")


async def _demo(names: tuple[ActName, ...], plan: MovesPlan, output: Output) -> dict[str, Summary]:
    """The summaries of the acts that were played, by name; those that Ctrl-C prevented are left out."""
    from nearcast.cli.demo_views.view import View

    view = View()
    backstage = _backstage(names, plan.seed)
    summaries: dict[str, Summary] = {}
    stop_requested = asyncio.create_task(until_told_to_stop())
    try:
        for name in names:
            if name is not ActName.MOVES and backstage is not None:
                backstage.begin()
            act, look = _act(name, plan, view, backstage)
            summary = await _perform(act, look, view, stop_requested, output)
            if summary is not None:
                summaries[name] = summary
            if stop_requested.done():
                break
    finally:
        stop_requested.cancel()
        await asyncio.gather(stop_requested, return_exceptions=True)
        if backstage is not None:
            await backstage.close()
    if not summaries:
        raise typer.Exit(130)  # stopped while starting: there is nothing to summarise
    return summaries


def _backstage(names: tuple[ActName, ...], seed: int) -> Backstage | None:
    if ActName.CHANNELS not in names:
        return None
    from nearcast.demo.channels import channels_plan

    return Backstage(channels_plan(seed))


def _act(name: ActName, plan: MovesPlan, view: View, backstage: Backstage | None) -> tuple[Act[Any], Look]:
    if backstage is not None and name is ActName.CHANNELS:
        from nearcast.cli.demo_views.channels import ChannelsLook
        from nearcast.demo.channels import ChannelsAct

        channels = ChannelsAct(backstage.plan, backstage.stage(), view.tell)
        return channels, ChannelsLook(channels)
    if name is ActName.MOVES:
        from nearcast.cli.demo_views.moves import MovesLook
        from nearcast.demo.moves import MovesAct

        moves = MovesAct(plan, view.tell)
        return moves, MovesLook(moves)
    if name is ActName.PLACES:
        from nearcast.cli.demo_views.places import PlacesLook
        from nearcast.demo.places import PlacesAct, PlacesPlan

        places = PlacesAct(PlacesPlan(seed=plan.seed), view.tell)
        return places, PlacesLook(places)
    from nearcast.cli.demo_views.policy import PolicyLook
    from nearcast.demo.policy import PolicyAct, PolicyPlan

    policy = PolicyAct(PolicyPlan(plan.seed), view.tell)
    return policy, PolicyLook(policy)


async def _perform(
    act: Act[Any], look: Look, view: View, stop_requested: asyncio.Task[None], output: Output
) -> Summary | None:
    """Play one act; None if it was stopped before it began."""
    running: asyncio.Task[Summary] = asyncio.create_task(act.run())
    tasks: list[asyncio.Task[Any]] = [running]
    if output is Output.TABLE:
        tasks.append(asyncio.create_task(view.show(act, look)))
    try:
        done, _ = await asyncio.wait([*tasks, stop_requested], return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        if not (running.done() or act.begun.is_set()):
            return None
        if stop_requested.done():
            act.stop()
        summary = await running
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if output is Output.TABLE:
        from nearcast.cli.demo_views.summary import summary_rows

        print()
        print_table((f"summary, {look.name}", ""), summary_rows(summary))
        print(flush=True)
    return summary


def _ok(summaries: dict[str, Summary]) -> bool:
    return all(summary.exact and not summary.missed for summary in summaries.values())


def _say_what_is_wrong(summaries: dict[str, Summary]) -> None:
    for summary in summaries.values():
        for example in summary.examples:
            say(f"  {example}")
        for goal in summary.missed:
            say(f"an act did not show what it should: {goal}")


# --- the last act's preparation


PACKAGES = {"pyspark": "data", "pyarrow": "data", "numpy": "policies", "httpx": "gateway", "websockets": "gateway"}
MEMORY_BYTES = 3 << 30  # Spark, three servers, their agents


def obstacle() -> str:
    """Why the act cannot be played on this machine, and what would help; empty if it can."""
    for package, extra in PACKAGES.items():
        if importlib.util.find_spec(package) is None:
            return f"it needs {package}: pip install 'nearcast[{extra}]'"
    free = available_bytes()
    if free is not None and free < MEMORY_BYTES:
        return f"it needs {MEMORY_BYTES / 1e9:.1f} GB of memory, but {free / 1e9:.1f} GB are free: close some programs"
    return ""


def available_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Memory available to programs; None where the system does not say."""
    with contextlib.suppress(OSError):
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


class Backstage:
    """Opens the stage of the last act while the acts before it are played."""

    def __init__(self, plan: EmergencyPlan) -> None:
        self.plan = plan
        self._opening: asyncio.Task[EmergencyStage] | None = None

    def begin(self) -> None:
        from nearcast.demo.channels import open_stage

        if self._opening is None:
            self._opening = asyncio.create_task(open_stage(self.plan))

    async def stage(self) -> EmergencyStage:
        """The stage, which the caller owns from now on and must close."""
        self.begin()
        assert self._opening is not None
        stage = await self._opening
        self._opening = None
        return stage

    async def close(self) -> None:
        """Close the stage if it was never handed out."""
        opening, self._opening = self._opening, None
        if opening is None:
            return
        opening.cancel()
        for found in await asyncio.gather(opening, return_exceptions=True):
            if not isinstance(found, BaseException):
                await found.close()
