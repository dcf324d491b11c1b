"""Runs with the figures a test wants."""

from __future__ import annotations

from nearcast.runtime.profiling.configuration import Configuration
from nearcast.runtime.profiling.runs import Run


def made(
    output_per_s: float,
    p95_ms: float,
    *,
    cpu: float = 0.5,
    measuring: float = 0.2,
    kept: float = 1.0,
    **configuration: int,
) -> Run:
    shape = {"topics": 2, "publishers": 1, "subscribers": 5, "payload_bytes": 200, **configuration}
    published_per_s = output_per_s / shape["subscribers"]
    return Run(
        configuration=Configuration(**shape, rate_per_s=published_per_s / shape["topics"] / kept),
        published_per_s=published_per_s,
        output_per_s=output_per_s,
        output_bytes_per_s=output_per_s * (shape["payload_bytes"] + 100),
        latency_p50_s=p95_ms / 2e3,
        latency_p95_s=p95_ms / 1e3,
        latency_p99_s=p95_ms / 5e2,
        cpu_share=cpu,
        measuring_cpu_share=measuring,
    )
