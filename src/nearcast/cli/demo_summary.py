"""What an act of the demo came to, as rows of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearcast.testbed.channels_act import ChannelsSummary
    from nearcast.testbed.moves_act import MovesSummary
    from nearcast.testbed.policy_act import PolicySummary
    from nearcast.testbed.summary import Summary

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
    from nearcast.testbed.moves_act import MovesSummary
    from nearcast.testbed.policy_act import PolicySummary

    if isinstance(summary, MovesSummary):
        return _moves(summary)
    if isinstance(summary, PolicySummary):
        return _policy(summary)
    return _channels(summary)  # type: ignore[arg-type]


def _moves(summary: MovesSummary) -> Rows:
    return [
        ("moves", f"{summary.moves:,}, of them {summary.mode_changes:,} changes of mode"),
        ("kills", f"{summary.agent_kills} of agents, {summary.controller_kills} of the controller"),
    ]


def _policy(summary: PolicySummary) -> Rows:
    return [
        ("servers", f"{summary.servers_added} added, {summary.servers_removed} removed"),
        ("hot topics", f"{summary.topics_replicated} replicated, {summary.topics_collapsed} collapsed"),
        ("moves", f"{summary.moves:,}"),
        ("kills", f"{summary.controller_kills} of the controller"),
        ("the policy did", _verdict(summary)),
    ]


def _channels(summary: ChannelsSummary) -> Rows:
    return [
        ("subscriptions", f"{summary.subscriptions:,}, computed as {summary.backend_subscriptions:,}"),
        ("executions on Spark", f"{summary.executions:,}"),
        ("rows delivered", f"{summary.rows:,}"),
        ("people moved", f"{summary.subscriber_moves:,}, with {summary.shuffles} shuffle"),
    ]


def _verdict(summary: PolicySummary) -> str:
    if summary.missed:
        return "NOT what it is to show"
    return "what it is to show" if summary.finished else "not all of it yet"


def _ms(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.0f} ms"
