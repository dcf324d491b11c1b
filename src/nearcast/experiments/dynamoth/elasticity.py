"""Figure 7: players come and go, and the number of servers follows (Dynamoth V.E).

800 players join step by step, 600 leave, and nearly 400 join again. Besides the curves, two things are checked: that no
server was added where moving a single topic would have kept every load ratio below `lr_high` (by trying all moves, see
`sufficing_move` in checks.py), and that the same changes of the plan lose no message when the message-level simulator
makes them.
"""

from __future__ import annotations

import msgspec

from nearcast.core.model.membership import VIRTUAL_NODES
from nearcast.core.model.planning import AddBroker
from nearcast.errors import UsageError
from nearcast.experiments.chart import Chart, Colour, Limit, Line, Marks, Panel
from nearcast.experiments.checks import (
    MEAN_S,
    Additions,
    Replayed,
    ReplaySettings,
    replay,
    sufficing_move,
    trailing_means,
)
from nearcast.experiments.result import Progress, Result, silent
from nearcast.flow.model import Demand, FlowSettings, Series
from nearcast.flow.network import Delays, LognormalDelays
from nearcast.flow.simulation import FlowSimulation
from nearcast.policies.dynamoth import Dynamoth, DynamothConfig
from nearcast.workloads.rgame import MESSAGE_BYTES, UPDATES_PER_S, Movement, Ramp, RGame

# --- the game


TILES_PER_SIDE = 12
SERVERS = 8  # V.D
GOOD_S = 0.150  # V.D: play is optimal below it


class Game(msgspec.Struct, frozen=True, kw_only=True):
    """The game of experiments 2 and 3: RGame on a map of tiles, on rented servers (Dynamoth V.D and V.E).

    The paper gives players, updates per second, servers and the load ratio at which a server fails. It does not give
    the map, the size of an update or the bandwidth of a server. Those here are the simulator's (flow/model.py,
    workloads/rgame.py), with a map on which the servers, perfectly used, carry a little more than the 1,000 players
    that Dynamoth reached.
    """

    tiles_per_side: int = TILES_PER_SIDE
    servers: int = SERVERS
    movement: Movement = Movement()
    wait_s: float = FlowSettings().wait_s  # T_wait

    def __post_init__(self) -> None:
        if min(self.tiles_per_side, self.servers) < 1:
            raise UsageError("a game needs at least one tile and one server")

    def workload(self, players: Ramp, seed: int) -> World:
        return World(
            RGame(self.tiles_per_side, self.tiles_per_side, players, seed, movement=self.movement), f"world{seed}"
        )

    def flow(self, virtual_nodes: int) -> FlowSettings:
        return FlowSettings(brokers_max=self.servers, virtual_nodes=virtual_nodes, wait_s=self.wait_s)

    @property
    def conditions(self) -> Conditions:
        flow = FlowSettings()
        return Conditions(
            tiles=self.tiles_per_side**2,
            movement=self.movement,
            updates_per_s=UPDATES_PER_S,
            delivery_bytes=MESSAGE_BYTES + flow.overhead_bytes,
            servers=self.servers,
            capacity_bytes_per_s=flow.capacity_bytes_per_s,
            fail_ratio=flow.fail_ratio,
            wait_s=self.wait_s,
        )


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What a figure depends on, printed with it."""

    tiles: int
    movement: Movement
    updates_per_s: float
    delivery_bytes: float
    servers: int
    capacity_bytes_per_s: float
    fail_ratio: float
    wait_s: float


class World:
    """The game with a prefix to its topics' names, so that rings differ from seed to seed as walks do."""

    def __init__(self, game: RGame, name: str) -> None:
        self.topics = tuple(f"{name}.{topic}" for topic in game.topics)
        self._game = game

    def demand(self, at_s: float) -> Demand:
        return self._game.demand(at_s)


# --- the experiment


NAME = "dynamoth-7"
FIRST_BROKER = "b1"  # the flow simulator's name for it
PROGRESS_EVERY_S = 100.0
CHART_MAX_MS = 250.0

# (seconds, players): the numbers of V.E; one player joins per second, two leave per second, with pauses in between.
PLAYERS = Ramp(((0.0, 20), (780.0, 800), (900.0, 800), (1200.0, 200), (1400.0, 200), (1800.0, 600), (2000.0, 600)))


class ElasticitySettings(msgspec.Struct, frozen=True, kw_only=True):
    game: Game = Game()
    players: Ramp = PLAYERS
    seed: int = 0
    messages: ReplaySettings = ReplaySettings()  # of the message-level run

    def __post_init__(self) -> None:
        if len(self.players.points) < 2:
            raise UsageError("the number of players must change: give a ramp of two points or more")

    @property
    def seconds(self) -> float:
        return self.players.points[-1][0] + 1


class ElasticityFigures(msgspec.Struct, frozen=True, kw_only=True):
    servers_most: int
    servers_least_after: int  # the fewest after the most
    servers_end: int
    servers_at_points: list[tuple[float, int, int]]  # (second, players, servers) at the corners of the ramp
    additions: int
    removals: int
    rebalancings: int
    single_move_would_have_sufficed: int  # number of such additions; should be 0
    lost_messages: int  # in the message-level run; should be 0
    message_level: Replayed
    seconds_above_150_ms: float  # of the 10-s mean of the average response time
    highest_response_ms: float  # the same mean
    seed: int
    conditions: Conditions


def run_elasticity(settings: ElasticitySettings, delays: Delays | None = None, progress: Progress = silent) -> Result:
    config = DynamothConfig()
    policy = Additions(Dynamoth(config))
    workload = settings.game.workload(settings.players, settings.seed)
    flow = settings.game.flow(VIRTUAL_NODES)
    simulation = FlowSimulation(workload, policy, flow, delays or LognormalDelays(), settings.seed)

    def tell(done_s: float) -> None:
        if done_s % PROGRESS_EVERY_S == 0:
            progress(int(done_s), int(settings.seconds), "simulated seconds")

    series = simulation.run(settings.seconds, tell)
    in_vain = [seen for seen in policy.seen if sufficing_move(seen, config.lr_high) is not None]
    progress(int(settings.seconds), int(settings.seconds), "the same changes at message level")
    replayed = replay(workload.topics, (FIRST_BROKER,), series.changes, settings.messages)
    figures = _figures(settings, series, len(in_vain), replayed)
    return Result(
        name=NAME,
        figures=figures,
        series=_series(series),
        chart=_chart(series),
        rows=_rows(figures),
    )


def _figures(settings: ElasticitySettings, series: Series, in_vain: int, replayed: Replayed) -> ElasticityFigures:
    means_s = trailing_means(series.response_s, round(MEAN_S / series.step_s))
    most = max(series.brokers)
    changes = [change for each in series.rebalancings for change in each.proposal.changes]
    return ElasticityFigures(
        servers_most=most,
        servers_least_after=min(series.brokers[series.brokers.index(most) :]),
        servers_end=series.brokers[-1],
        servers_at_points=[
            (at_s, players, series.brokers[round(at_s / series.step_s)]) for at_s, players in settings.players.points
        ],
        additions=sum(change.count for change in changes if isinstance(change, AddBroker)),
        removals=sum(later < earlier for earlier, later in zip(series.brokers, series.brokers[1:], strict=False)),
        rebalancings=len(series.rebalancings),
        single_move_would_have_sufficed=in_vain,
        lost_messages=replayed.lost,
        message_level=replayed,
        seconds_above_150_ms=sum(mean_s >= GOOD_S for mean_s in means_s) * series.step_s,
        highest_response_ms=max(means_s) * 1e3,
        seed=settings.seed,
        conditions=settings.game.conditions,
    )


def _series(series: Series) -> dict[str, object]:
    return {
        "at_s": series.at_s,
        "players": series.clients,
        "servers": series.brokers,
        "deliveries_per_s": [round(value, 1) for value in series.deliveries_per_s],
        "response_s": [round(value, 5) for value in series.response_s],
        "load_ratio_mean": [round(value, 4) for value in series.load_ratio_mean],
        "load_ratio_max": [round(value, 4) for value in series.load_ratio_max],
        "rebalancings": series.rebalancings,
        "changes": series.changes,
    }


def _chart(series: Series) -> Chart:
    times = [each.at_s for each in series.rebalancings]
    steps = [round(at_s / series.step_s) for at_s in times]
    response_ms = [value * 1e3 for value in series.response_s]
    on_players = Marks(
        label="rebalancing", x=times, y=[float(series.clients[step]) for step in steps], colour=Colour.PURPLE
    )
    on_response = Marks(
        label="rebalancing",
        x=times,
        y=[min(response_ms[step], 0.98 * CHART_MAX_MS) for step in steps],
        colour=Colour.PURPLE,
    )
    return Chart(
        title=f"{NAME}: servers follow the players (Dynamoth)",
        x_label="time (s)",
        panels=(
            Panel(
                y_label="players",
                lines=(Line(label="players", x=series.at_s, y=series.clients, colour=Colour.GREY),),
                marks=(on_players,),
                right_label="servers",
                right_lines=(
                    Line(label="servers", x=series.at_s, y=series.brokers, colour=Colour.BLUE, steps=True, dashed=True),
                ),
            ),
            Panel(
                y_label="average response time (ms)",
                lines=(Line(label="response time", x=series.at_s, y=response_ms, colour=Colour.BLUE),),
                marks=(on_response,),
                limits=(Limit(label="150 ms", y=GOOD_S * 1e3),),
                y_max=CHART_MAX_MS,
                right_label="outgoing messages (1/s)",
                right_lines=(
                    Line(label="outgoing messages", x=series.at_s, y=series.deliveries_per_s, colour=Colour.GREEN),
                ),
            ),
            Panel(
                y_label="load ratio",
                lines=(
                    Line(label="busiest server", x=series.at_s, y=series.load_ratio_max, colour=Colour.ORANGE),
                    Line(label="mean of all servers", x=series.at_s, y=series.load_ratio_mean, colour=Colour.BLUE),
                ),
            ),
        ),
    )


def _rows(figures: ElasticityFigures) -> tuple[tuple[str, str], ...]:
    corners = ", ".join(f"{servers} at {players}" for _, players, servers in figures.servers_at_points)
    return (
        ("servers at players", corners),
        ("most servers, fewest after that", f"{figures.servers_most}, {figures.servers_least_after}"),
        ("rebalancings", f"{figures.rebalancings}"),
        ("servers added", f"{figures.additions}"),
        ("  where one move would have sufficed", f"{figures.single_move_would_have_sufficed}"),
        ("servers released", f"{figures.removals}"),
        ("message level: moves, deliveries", f"{figures.message_level.moves:,}, {figures.message_level.deliveries:,}"),
        ("message level: lost, duplicated, reordered", _wrong(figures.message_level)),
        ("10-s mean response above 150 ms", f"{figures.seconds_above_150_ms:.0f} s"),
        ("highest 10-s mean response", f"{figures.highest_response_ms:.0f} ms"),
    )


def _wrong(replayed: Replayed) -> str:
    return f"{replayed.lost}, {replayed.duplicated}, {replayed.reordered}"
