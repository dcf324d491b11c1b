"""Whether the service answers, and whether Spark runs behind it."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from nearcast.pipeline.service.state import ServiceOf

router = APIRouter(tags=["health"])


@router.get("/health")
def get_health(service: ServiceOf) -> dict[str, Any]:
    """Answers as soon as the service is up.

    `spark`: starting, running, or why not; `open`: executions that run; `damaged`: what cannot be read any more;
    `uncollected`: feeds that no agent has collected for a while; `problem`: what failed in the last minute that nobody
    had thought of.
    """
    catalog = service.catalog
    return {
        "spark": service.engine.state,
        "open": len(catalog.executions.open()),
        "damaged": catalog.damaged(),
        "uncollected": service.engine.uncollected,
        "problem": service.engine.trouble,
    }
