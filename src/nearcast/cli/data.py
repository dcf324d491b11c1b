"""`nearcast data`: the data part of the system, which runs on Spark."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearcast.cli.options import DEFAULT_URL, Output, OutputOption, Url
from nearcast.cli.output import print_json, print_table
from nearcast.cli.running import errors_as_exit_codes, say
from nearcast.errors import ClusterError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = typer.Typer(no_args_is_help=True, help="The data part: feeds and channels on Spark.")


@app.callback()
def data() -> None:
    """The data part: feeds and channels on Spark."""


@app.command("check")
@errors_as_exit_codes()
def check(
    stream: Annotated[
        str, typer.Option("--stream", metavar="NAME", help="Read this stream; `prefix*` for several.")
    ] = "",
    records: Annotated[int, typer.Option("--records", min=1, max=1000, help="To show, at most.")] = 5,
    master: Annotated[str, typer.Option("--master", help="Spark's master.")] = "local[*]",
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Start Spark, read a few records of a stream if one is named, say what was found, and stop.

    Shows whether the data part works on this machine. Java is found, or taken from the package.

    Example: nearcast data check --url redis://127.0.0.1:6379 --stream orders
    """
    from nearcast.pipeline.session import SessionSettings, open_session

    settings = SessionSettings(master=master, app_name="nearcast-check")
    say(f"starting Spark on {master} ...")
    began_s = time.monotonic()
    with open_session(settings) as spark:
        found = _versions(spark) | {"start_s": round(time.monotonic() - began_s, 1)}
        shown = read_records(spark, url, stream, records) if stream else []
    if output is Output.JSON:
        print_json(found | {"records": shown})
        return
    print_table(("part", "found"), [(name, str(value)) for name, value in found.items()])
    if stream:
        rows = [(row["stream"], row["id"], str(row["fields"])) for row in shown]
        print_table(("stream", "id", "fields"), rows, title=f"{len(rows)} records")


def _versions(spark: SparkSession) -> dict[str, Any]:
    """Of what runs; a small sum shows that tasks do."""
    context = spark.sparkContext
    system = context._jvm.java.lang.System  # type: ignore[union-attr]
    if spark.range(100).selectExpr("sum(id)").first()[0] != 4950:  # type: ignore[index]
        raise ClusterError("Spark gave a wrong sum: check its installation")
    return {
        "spark": spark.version,
        "java": system.getProperty("java.version"),
        "java_home": system.getProperty("java.home"),
        "master": context.master,
    }


def read_records(spark: SparkSession, url: str, stream: str, count: int) -> list[dict[str, Any]]:
    from pyspark.errors import PySparkException

    reading = spark.read.format("valkey_streams").options(url=url, streams=stream)
    try:
        rows = reading.load().orderBy("at", "id", "stream").limit(count).collect()
    except PySparkException as error:
        # Spark hands on the worker's error as text, in the middle of its traceback.
        ours = re.search(r"nearcast\.errors\.\w+: (.+)", str(error))
        raise ClusterError(f"cannot read stream {stream!r}: {ours.group(1) if ours else error}") from None
    return [
        {
            "stream": row.stream,
            "id": row.id,
            "fields": {name: bytes(value).decode("utf-8", "backslashreplace") for name, value in row.fields.items()},
        }
        for row in rows
    ]
