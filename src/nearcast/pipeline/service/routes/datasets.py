"""Datasets: listed, and static ones loaded from a file in the body."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.concurrency import run_in_threadpool

from nearcast.pipeline.schemas import checked_dataset_name
from nearcast.pipeline.service.bodies import DatasetName, Problem
from nearcast.pipeline.service.state import Service, ServiceOf

router = APIRouter(tags=["datasets"], responses={409: {"model": Problem}, 422: {"model": Problem}})


@router.get("/datasets")
def get_datasets(service: ServiceOf) -> dict[str, Any]:
    """All datasets, with their columns and how much a reader of the whole reads."""
    return {"datasets": [_shown(service, name) for name in service.catalog.datasets.names()]}


@router.post(
    "/datasets/{dataset}",
    openapi_extra={
        "requestBody": {"content": {"text/csv": {}, "application/json": {}, "application/octet-stream": {}}}
    },
)
async def load_dataset(
    dataset: DatasetName,
    request: Request,
    service: ServiceOf,
    format: Annotated[Literal["csv", "json", "parquet"], Query(description="Of the file in the body.")] = "csv",
    schema: Annotated[str, Query(description="As in CREATE TABLE; without one, as the file looks.")] = "",
    key: Annotated[str, Query(description="A column whose values are all different.")] = "",
) -> dict[str, Any]:
    """Replace a static dataset by the records of a file: readers see all of the old or all of the new."""
    checked_dataset_name(dataset)  # before anything is received
    with tempfile.TemporaryDirectory(prefix="nearcast-load-") as folder:
        file = Path(folder) / f"{dataset}.{format}"
        with file.open("wb") as opened:
            async for part in request.stream():
                await run_in_threadpool(opened.write, part)
        await run_in_threadpool(service.engine.load, dataset, file, file_format=format, schema=schema, key=key)
    service.engine.changed()
    return await run_in_threadpool(_shown, service, dataset)


@router.delete("/datasets/{dataset}", status_code=204)
def delete_dataset(dataset: DatasetName, service: ServiceOf) -> None:
    """Delete a dataset that no channel reads and no feed fills."""
    service.catalog.drop_dataset(dataset)


def _shown(service: Service, name: str) -> dict[str, Any]:
    datasets = service.catalog.datasets
    described = datasets.describe(name)
    rows, size = datasets.size(name)
    return {
        "name": name,
        "source": described.source,
        "columns": datasets.schema(name),
        "key": described.key,
        "position": described.position,
        "rows": rows,
        "bytes": size,
    }
