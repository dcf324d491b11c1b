"""End to end (ePulsar, section 5.8): a play on a real cluster over an emulated network, once for each policy.

Every policy gets a new cluster. Its brokers are at the sites of the play, the controller and the store at the control
site, and the agents reach them over the distance between. A policy is named as for `nearcast controller`; `hash_ring`
is the baseline of hashing, where topics stay wherever their names put them.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence

import msgspec

from nearcast.core.model.bounds import Bound
from nearcast.errors import UsageError
from nearcast.experiments.chart import Limit, Line, Panel
from nearcast.experiments.result import Progress, silent
from nearcast.policies.catalog import policy_named
from nearcast.testing.cluster import LocalCluster
from nearcast.testing.load import percentile
from nearcast.testing.network.emulated import EmulatedNetwork
from nearcast.testing.network.placed import place_cluster
from nearcast.workloads.located.live import LiveOutcome, LivePlay
from nearcast.workloads.located.play import GoTo, Listen, Play

BACK_MOST_S = 15.0  # what we promise after a change of zone
HASHING, BOUNDS = "hash_ring", "epulsar"


class PolicyRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run. `changes` are those that put a topic's clients elsewhere or gave it new ones."""

    policy: str
    within_bound_share: float
    latency_ms_p50: float
    latency_ms_p99: float
    deliveries: int
    published: int
    refused: int
    missed: int
    interruptions: int
    changes: int
    judged: int  # changes with so much time until the next one, or the end, that `back` can be told
    back_within_15s_share: float | None  # of those
    back_s_p50: float | None
    back_s_most: float | None
    cpu_share: float  # of one core, that clients and links took: a run near 1 measures the machine


class Run(msgspec.Struct, frozen=True):
    """A run, and what was recorded."""

    figures: PolicyRun
    outcome: LiveOutcome


def check_policies(policies: Sequence[str]) -> None:
    """Raise for names that are no policy, before anything is started."""
    if not policies:
        raise UsageError("name at least one policy")
    for name in policies:
        policy_named(name)


async def run_policies(
    play: Play,
    policies: Sequence[str],
    seconds: float,
    progress: Progress = silent,
    *,
    watched: str = "",
) -> list[Run]:
    """The same play with each policy in turn."""
    check_policies(policies)
    runs: list[Run] = []
    for number, policy in enumerate(policies):
        progress(number, len(policies), f"{policy}: {seconds:g} s with {len(play.clients)} clients")
        runs.append(await run_policy(play, policy, seconds, watched=watched))
    progress(len(policies), len(policies), "done")
    return runs


async def run_policy(play: Play, policy: str, seconds: float, *, watched: str) -> Run:
    async with EmulatedNetwork(play.world, random.Random(0)) as network:

        async def store_for(broker: str, store_url: str) -> str:
            if not network.knows(store_url):
                await network.place(store_url, play.control_site)
            return (await network.attach(f"agent-{broker}", play.brokers[broker])).resolve(store_url)

        cluster = await LocalCluster.start(
            brokers=list(play.brokers),
            sites=play.brokers,
            controller_options=["--policy", policy],
            store_for=store_for,
            emulated=True,
        )
        async with cluster:
            await place_cluster(network, cluster, play.brokers)
            async with await cluster.console() as console:
                await console.set_bound("*", Bound(play.bound_s))
            async with LivePlay(play, network, cluster.urls, watched=watched) as live:
                began_s, cpu_s = time.monotonic(), time.process_time()
                outcome = await live.run(seconds)
                cpu_share = (time.process_time() - cpu_s) / (time.monotonic() - began_s)
    return Run(judged(play, policy, seconds, outcome, cpu_share), outcome)


def judged(play: Play, policy: str, seconds: float, outcome: LiveOutcome, cpu_share: float) -> PolicyRun:
    """What a run shows."""
    recording = outcome.recording
    found = [
        (until_s - at_s, recording.back_after_s(topics, at_s, until_s))
        for at_s, until_s, topics in disturbances(play, seconds)
    ]
    # A change is judged if the topics came back, or had enough time to.
    told = [back_s for room_s, back_s in found if back_s is not None or room_s >= BACK_MOST_S]
    backs_s = [back_s for back_s in told if back_s is not None]
    in_time = sum(back_s <= BACK_MOST_S for back_s in backs_s)
    return PolicyRun(
        policy=policy,
        within_bound_share=round(recording.share_within, 4),
        latency_ms_p50=_ms(recording.percentile_s(50)),
        latency_ms_p99=_ms(recording.percentile_s(99)),
        deliveries=recording.count,
        published=outcome.published,
        refused=outcome.refused,
        missed=outcome.missed,
        interruptions=outcome.interruptions,
        changes=len(found),
        judged=len(told),
        back_within_15s_share=round(in_time / len(told), 4) if told else None,
        back_s_p50=_rounded(percentile(backs_s, 50)),
        back_s_most=_rounded(max(backs_s, default=None)),
        cpu_share=round(cpu_share, 2),
    )


Series = dict[str, list[dict[str, object]]]


def charted(play: Play, shown: Mapping[str, tuple[Line, ...]], y_max_ms: float) -> tuple[tuple[Panel, ...], Series]:
    """One panel for each policy, with the bound; and the same as numbers."""
    limit = Limit(label=f"bound: {play.bound_s * 1e3:g} ms", y=play.bound_s * 1e3)
    panels = tuple(
        Panel(y_label=f"{policy} (ms)", lines=lines, limits=(limit,), y_max=y_max_ms) for policy, lines in shown.items()
    )
    series: Series = {
        policy: [{"topic": line.label, "at_s": line.x, "mean_ms": line.y} for line in lines]
        for policy, lines in shown.items()
    }
    return panels, series


def disturbances(play: Play, seconds: float) -> list[tuple[float, float, list[str]]]:
    """For each change: when, until when its topics are left alone, and which those are."""
    found: list[tuple[float, float, list[str]]] = []
    next_s: dict[str, float] = {}
    for change in reversed(play.changes):
        if change.at_s >= seconds:
            continue
        if isinstance(change, GoTo):
            topics = play.topics_of(change.endpoint)
        else:
            topics = [change.topic]
        until_s = min((next_s.get(topic, seconds) for topic in topics), default=seconds)
        next_s.update(dict.fromkeys(topics, change.at_s))
        if isinstance(change, GoTo | Listen):
            found.append((change.at_s, until_s, topics))
    return found[::-1]


def _ms(seconds: float | None) -> float:
    return round((seconds or 0.0) * 1e3, 1)


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def rows_of(runs: Sequence[PolicyRun], bound_s: float) -> list[tuple[str, str]]:
    """The figures of all policies as text."""
    rows: list[tuple[str, str]] = []
    for run in runs:
        back = "unknown" if run.back_within_15s_share is None else f"{run.back_within_15s_share:.1%}"
        rows += [
            (f"{run.policy}: within {bound_s * 1e3:g} ms", f"{run.within_bound_share:.2%} of {run.deliveries:,}"),
            (f"{run.policy}: latency, p50 and p99", f"{run.latency_ms_p50:.1f} and {run.latency_ms_p99:.1f} ms"),
            (f"{run.policy}: back within {BACK_MOST_S:g} s", f"{back} of {run.judged} changes"),
            (f"{run.policy}: time until back, p50 and longest", f"{_s(run.back_s_p50)} and {_s(run.back_s_most)}"),
            (f"{run.policy}: messages missed, interruptions", f"{run.missed}, {run.interruptions}"),
        ]
    return rows


def _s(seconds: float | None) -> str:
    return "unknown" if seconds is None else f"{seconds:.1f} s"
