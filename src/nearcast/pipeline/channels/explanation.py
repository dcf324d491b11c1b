"""A channel that was checked, in words for people and programs: what it reads, and how its subscriptions are joined."""

from __future__ import annotations

from typing import Any

from nearcast.pipeline.channels.execution import Prepared


def explained(prepared: Prepared) -> dict[str, Any]:
    """Of plain values: the REST API sends it and `nearcast channel check` shows it."""
    channel, rewritten = prepared.channel, prepared.rewritten
    return {
        "channel": channel.name,
        "period_s": channel.period_s,
        "continuous": channel.continuous,
        "parameters": dict(channel.parameters),
        "new_datasets": list(channel.new_datasets),
        "whole_datasets": list(channel.whole_datasets),
        "columns": list(rewritten.columns),
        "joins": [
            {"relation": join.relation, "kind": join.kind, "on": list(join.conditions)} for join in rewritten.joins
        ],
        "warnings": list(rewritten.warnings),
        "sql": rewritten.sql(pretty=True),
    }
