"""Calls of the data cluster's REST API by commands, with its refusals as errors that say what to do."""

from __future__ import annotations

import os
import time
import urllib.parse
from typing import Annotated, Any

import typer

from nearcast.cli.running import say
from nearcast.errors import ClusterError, UsageError

DEFAULT_DATA = "http://127.0.0.1:8100"
TOKEN_VARIABLE = "NEARCAST_DATA_TOKEN"  # opens everything
GATEWAY_TOKEN_VARIABLE = "NEARCAST_GATEWAY_TOKEN"  # opens what gateways need
CALL_S = 120.0  # a channel is analysed and a dataset is loaded by Spark, perhaps while it is busy
STARTING_S = 60.0  # how long Spark may take to start: about ten seconds on an idle machine

DataUrl = Annotated[
    str, typer.Option("--data", envvar="NEARCAST_DATA", metavar="URL", help="The data cluster's REST API.")
]


def path(*parts: str) -> str:
    return "/" + "/".join(urllib.parse.quote(part, safe="") for part in parts)


def call(data: str, method: str, path: str, **request: Any) -> Any:
    """The answer's JSON, None if it has none. `request`: what httpx takes, as json= and params=.

    A data cluster whose Spark is starting is asked again until it runs.
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
        raise UsageError(f"--data {data}: give a URL, as {DEFAULT_DATA}") from None
    except httpx.TransportError as error:
        hint = "start one with `nearcast data --store URL --folder DIR`, or give its address with --data"
        raise ClusterError(f"no data cluster answers at {data} ({error}): {hint}") from None


def _refusal(answer: Any, data: str, request: dict[str, Any]) -> Exception:
    try:
        said = answer.json()
        problem, hint = said["problem"], said["hint"]
    except (ValueError, KeyError, TypeError):
        return ClusterError(f"{data} answered {answer.status_code}, not as a data cluster does: check --data")
    if answer.status_code == 401:
        return UsageError(f"{problem}: set {TOKEN_VARIABLE} to the data cluster's token")
    if "line" in said:
        text = request["json"]["text"]
        return UsageError(f"line {said['line']}, column {said['column']}: {problem}; {hint}{_marked(text, **said)}")
    message = f"{problem}: {hint}" if hint else problem
    return UsageError(message) if answer.is_client_error else ClusterError(message)


def _marked(text: str, line: int, column: int, **rest: str) -> str:
    """The line of the text with a caret under the place."""
    lines = text.splitlines()
    if not 1 <= line <= len(lines):
        return ""
    shown = lines[line - 1].replace("\t", " ")
    return f"\n  {shown}\n  {' ' * (column - 1)}^"
