"""The rows of an act's summary."""

from __future__ import annotations

from nearcast.demo.act import Summary
from nearcast.demo.channels import ChannelsSummary
from nearcast.demo.delays import Delays
from nearcast.demo.moves import MovesSummary
from nearcast.demo.places import Compared, PlacesSummary
from nearcast.demo.policy import PolicySummary

Rows = list[tuple[str, str]]


def summary_rows(summary: Summary) -> Rows:
    return [
        ("time", f"{summary.seconds:.0f} s{'' if summary.finished else ', ended early'}"),
        ("clients", f"{summary.clients}"),
        ("messages", f"{summary.messages:,}"),
        ("deliveries", f"{summary.deliveries:,}"),
        *_what_happened(summary),
        ("latency", f"p50 {_ms(summary.p50_ms)}, p99 {_ms(summary.p99_ms)}"),
        ("lost", f"{summary.lost:,}"),
        ("duplicated", f"{summary.duplicated:,}"),
        ("reordered", f"{summary.reordered:,}"),
        ("gaps and interruptions", f"{summary.gaps + summary.interrupted:,}"),
        ("guarantee", "kept" if summary.exact else "BROKEN"),
    ]


def _what_happened(summary: Summary) -> Rows:
    if isinstance(summary, MovesSummary):
        return _moves(summary)
    if isinstance(summary, PolicySummary):
        return _policy(summary)
    if isinstance(summary, PlacesSummary):
        return _places(summary)
    return _channels(summary)  # type: ignore[arg-type]


def _moves(summary: MovesSummary) -> Rows:
    return [
        ("moves", f"{summary.moves:,}, including {summary.mode_changes:,} changes of mode"),
        ("kills", f"{summary.agent_kills} of agents, {summary.controller_kills} of the controller"),
        ("log", f"{summary.read:,} of {summary.kept:,} messages read after their broker was killed"),
    ]


def _policy(summary: PolicySummary) -> Rows:
    return [
        ("servers", f"{summary.servers_added} added, {summary.servers_removed} removed"),
        ("hot topics", f"{summary.topics_replicated} replicated, {summary.topics_collapsed} collapsed"),
        ("moves", f"{summary.moves:,}"),
        ("kills", f"{summary.controller_kills} of the controller"),
        ("policy check", _verdict(summary)),
    ]


def _places(summary: PlacesSummary) -> Rows:
    return [
        ("bound", f"{summary.bound_ms:.0f} ms from publish to receipt"),
        *_compared("before the swap", summary.before),
        *_compared("meanwhile", summary.during),
        *_compared("after they followed", summary.after),
        ("topics followed", f"{_after(summary.followed_s)}, with {summary.moves} moves in all"),
        ("back within the bound", _after(summary.back_s)),
    ]


def _compared(when: str, found: Compared | None) -> Rows:
    if found is None:
        return []
    return [(f"{when}: with a bound", _delays(found.bound)), (f"{when}: hashed", _delays(found.hashed))]


def _delays(delays: Delays) -> str:
    share = "unknown" if delays.within_share is None else f"{delays.within_share:.0%}"
    return f"p50 {_ms(delays.p50_ms)}, p95 {_ms(delays.p95_ms)}, {share} within the bound"


def _after(seconds: float | None) -> str:
    return "not seen" if seconds is None else f"{seconds:.1f} s after the swap"


def _channels(summary: ChannelsSummary) -> Rows:
    return [
        ("subscriptions", f"{summary.subscriptions:,}, computed as {summary.backend_subscriptions:,}"),
        ("executions on Spark", f"{summary.executions:,}"),
        ("rows delivered", f"{summary.rows:,}"),
        ("people moved", f"{summary.subscriber_moves:,}, with {summary.shuffles} shuffle"),
    ]


def _verdict(summary: PolicySummary) -> str:
    if summary.missed:
        return "FAILED"
    return "passed" if summary.finished else "not finished"


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f} ms"
