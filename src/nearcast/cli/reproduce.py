"""`nearcast reproduce`: runs the papers' experiments again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli import reproduce_epulsar as epulsar
from nearcast.cli import reproduce_selection as selection
from nearcast.cli.conclusion import AsJson, Out, conclude
from nearcast.cli.shared import Output, OutputOption, run
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.experiments.dynamoth.elasticity import Game
    from nearcast.experiments.dynamoth.scalability import Growth
    from nearcast.experiments.result import Progress, Result
    from nearcast.flow.network import Delays


app = typer.Typer(help="Run the papers' experiments again.", no_args_is_help=True)

Matrix = Annotated[
    Path | None, typer.Option("--matrix", help="Round trips in ms as CSV, instead of the lognormal model.")
]
Live = Annotated[bool, typer.Option("--live", help="Use real servers on this machine, at a fifth of the size.")]
Seeds = Annotated[int, typer.Option("--seeds", min=1, help="How many runs, each with its own seed.")]
FirstSeed = Annotated[int, typer.Option("--first-seed", min=0, help="The seed of the first run.")]
Players = Annotated[int, typer.Option("--players", min=121, max=100_000, help="Players at the end.")]
Tiles = Annotated[int, typer.Option("--tiles", min=1, max=100, help="Tiles along each side of the map.")]
Wait = Annotated[float, typer.Option("--wait", min=0, help="T_wait: minimum number of seconds between rebalancings.")]
Speed = Annotated[float, typer.Option("--speed", min=0.001, help="Tiles that a player walks per second.")]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Processes. Default: one per core.")]

# A test compares these with the experiments, which are slow to import.
PLAYERS = 1200
TILES_PER_SIDE = 12
SPEED_TILES_PER_S = 0.1
WAIT_S = 10.0

# The experiments on gateways (DEBS 2019), and what each shows.
BAD = {
    "bad-5": "Random placement: load of each of 5 gateways. No balancing, LDM and SDM.",
    "bad-6": "Random placement: busiest gateway, cov and moves. No balancing, LDM and SDM.",
    "bad-7": "Round robin placement: load of each of 5 gateways. No balancing, LDM and SDM.",
    "bad-8": "Nearest placement: load of each of 5 gateways. No balancing, LDM and SDM.",
    "bad-9": "Nearest placement: load of each of 5 gateways with GSH. LDM and SDM.",
    "bad-10": "Nearest placement: busiest gateway, cov and moves. No balancing, LDM and SDM.",
    "bad-11": "Nearest placement: the same without and with GSH. Busiest gateway, cov and moves with LDM and SDM.",
    "bad-12": "All three placements: moves of LDM and SDM.",
    "bad-13": "10,000 subscribers on 10 gateways: clients and loads. Nearest placement, with LDM and with GSH.",
    "bad-14": "The same 10,000 subscribers: alpha and beta of LDM. Its cov and moves for several values of both.",
}


@app.callback()
def reproduce() -> None:
    """Run the papers' experiments again. Each writes a picture, and its series as JSON."""


@app.command("dynamoth-4a")
def dynamoth_4a(
    live: Live = False,
    matrix: Matrix = None,
    out: Out = None,
    as_json: AsJson = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """One topic with 100 to 800 subscribers.

    It is on one server, and replicated on three (all_publishers).

    Example: nearcast reproduce dynamoth-4a --live --json
    """
    conclude("dynamoth-4a", lambda progress: _crowd("dynamoth-4a", live, matrix, progress), out, as_json, output)


@app.command("dynamoth-4b")
def dynamoth_4b(
    live: Live = False,
    matrix: Matrix = None,
    out: Out = None,
    as_json: AsJson = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """One topic with 100 to 800 publishers.

    It has one subscriber, and is on one server, and replicated on three (all_subscribers).

    Example: nearcast reproduce dynamoth-4b --out /tmp/figures
    """
    conclude("dynamoth-4b", lambda progress: _crowd("dynamoth-4b", live, matrix, progress), out, as_json, output)


def _crowd(name: str, live: bool, matrix: Path | None, progress: Progress) -> Result:
    from nearcast.experiments.dynamoth.replication import CROWDS

    if live:
        from nearcast.experiments.dynamoth.replication_live import LIVE, run_live

        if matrix is not None:
            raise UsageError("--matrix is for the simulator only: leave out --live or --matrix")
        return run(lambda: run_live(CROWDS[name], LIVE[name], progress))
    from nearcast.experiments.dynamoth.replication import run_flow

    return run_flow(CROWDS[name], _delays(matrix), progress)


@app.command("dynamoth-5")
def dynamoth_5(
    seeds: Seeds = 5,
    first_seed: FirstSeed = 0,
    players: Players = PLAYERS,
    tiles: Tiles = TILES_PER_SIDE,
    speed: Speed = SPEED_TILES_PER_S,
    wait: Wait = WAIT_S,
    matrix: Matrix = None,
    workers: Workers = None,
    out: Out = None,
    as_json: AsJson = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """How many players Dynamoth and consistent hashing sustain.

    120 to 1,200 players on up to 8 servers, with response times below 150 ms.

    Example: nearcast reproduce dynamoth-5 --seeds 10 --json
    """

    def experiment(progress: Progress) -> Result:
        from nearcast.experiments.dynamoth.scalability import run_scalability

        return run_scalability(
            _growth(_game(tiles, speed, wait), players, first_seed, seeds), _delays(matrix), progress, workers
        )

    conclude("dynamoth-5", experiment, out, as_json, output)


@app.command("dynamoth-6")
def dynamoth_6(
    seeds: Seeds = 5,
    first_seed: FirstSeed = 0,
    players: Players = PLAYERS,
    tiles: Tiles = TILES_PER_SIDE,
    speed: Speed = SPEED_TILES_PER_S,
    wait: Wait = WAIT_S,
    matrix: Matrix = None,
    workers: Workers = None,
    out: Out = None,
    as_json: AsJson = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """The load ratios of the servers in the same experiment.

    With Dynamoth: mean, maximum, servers, rebalancings.

    Example: nearcast reproduce dynamoth-6 --json
    """

    def experiment(progress: Progress) -> Result:
        from nearcast.experiments.dynamoth.server_load import run_server_load

        return run_server_load(
            _growth(_game(tiles, speed, wait), players, first_seed, seeds), _delays(matrix), progress, workers
        )

    conclude("dynamoth-6", experiment, out, as_json, output)


@app.command("dynamoth-7")
def dynamoth_7(
    seed: Annotated[int, typer.Option("--seed", min=0, help="For the players' walks and the network.")] = 0,
    tiles: Tiles = TILES_PER_SIDE,
    speed: Speed = SPEED_TILES_PER_S,
    wait: Wait = WAIT_S,
    matrix: Matrix = None,
    out: Out = None,
    as_json: AsJson = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Players come and go, and the number of servers follows.

    There are 800, then 200, then 600 players, and no message is lost.

    Example: nearcast reproduce dynamoth-7 --seed 3 --json
    """

    def experiment(progress: Progress) -> Result:
        from nearcast.experiments.dynamoth.elasticity import ElasticitySettings, run_elasticity

        settings = ElasticitySettings(game=_game(tiles, speed, wait), seed=seed)
        return run_elasticity(settings, _delays(matrix), progress)

    conclude("dynamoth-7", experiment, out, as_json, output)


def _game(tiles: int, speed: float, wait: float) -> Game:
    from nearcast.experiments.dynamoth.elasticity import Game
    from nearcast.workloads.rgame import Movement

    return Game(tiles_per_side=tiles, movement=Movement(speed_tiles_per_s=speed), wait_s=wait)


def _growth(game: Game, players: int, first_seed: int, seeds: int) -> Growth:
    from nearcast.experiments.dynamoth.scalability import Growth

    return Growth(game=game, players_last=players, seeds=tuple(range(first_seed, first_seed + seeds)))


def _delays(matrix: Path | None) -> Delays:
    from nearcast.flow.network import LognormalDelays, MatrixDelays

    return LognormalDelays() if matrix is None else MatrixDelays.load(matrix)


def _add_bad(name: str, shows: str) -> None:
    """The experiments on gateways all have the same options."""

    @app.command(name, help=f"{shows}\n\nExample: nearcast reproduce {name} --json")
    def bad(
        seeds: Seeds = 5,
        first_seed: FirstSeed = 0,
        workers: Workers = None,
        out: Out = None,
        as_json: AsJson = False,
        output: OutputOption = Output.TABLE,
    ) -> None:
        def experiment(progress: Progress) -> Result:
            from nearcast.experiments.bad.sensitivity import run_bad

            return run_bad(name, range(first_seed, first_seed + seeds), progress, workers)

        conclude(name, experiment, out, as_json, output)


for _name, _shows in BAD.items():
    _add_bad(_name, _shows)


app.command("epulsar-3")(selection.accuracy)
app.command("epulsar-4")(selection.cities)
app.command("epulsar-5")(selection.zones)
app.command("epulsar-6")(selection.monitoring)
app.command("epulsar-7")(epulsar.migration)
app.command("epulsar-8")(epulsar.swarms)
app.command("epulsar-9")(epulsar.game)
