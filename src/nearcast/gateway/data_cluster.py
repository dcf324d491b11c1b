"""The data cluster as a gateway sees it: a REST interface, found through the store, that is away at times.

Every call either answers or raises: `Away` (try again later), `DataClusterFailed` (this request cannot be answered,
others may be), `Gone` (what was asked for is not there), or `DataClusterRefused` (the request is wrong).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import httpx
import msgspec

from nearcast.errors import ClusterError
from nearcast.runtime.http import HttpClient

T = TypeVar("T")

ANSWER_S = 20.0  # for one answer: an execution may hold the catalogue for some seconds
NOTIFICATION_WAIT_S = 20.0  # of one long poll
LIST_LIMIT = 100  # executions in one list


class Away(ClusterError):
    """No data cluster answers: it is not running, or restarting."""


class DataClusterFailed(ClusterError):
    """It failed on this request, or its answer makes no sense."""


class DataClusterRefused(ClusterError):
    """It answered that it cannot carry out the request."""


class Gone(DataClusterRefused):
    """It does not know, or no longer keeps, what was asked for."""


class Wanted(msgspec.Struct, frozen=True):
    """A subscription that `user` asks for: a channel may bind a parameter to the logged-in user."""

    channel: str
    parameters: dict[str, Any]
    user: str = ""


class Granted(msgspec.Struct, frozen=True):
    """The answer for one of the wanted subscriptions: an id, or a problem."""

    subscription: str = ""
    channel: str = ""
    from_execution: int = 0
    problem: str = ""
    hint: str | None = None


class _Grants(msgspec.Struct):
    subscriptions: list[Granted]


class Listed(msgspec.Struct, frozen=True):
    """An execution that has results for a subscription."""

    execution: int
    rows: int = 0
    bytes: int = 0


class Executions(msgspec.Struct, frozen=True):
    """The executions that have results for a subscription. All up to `upto` are committed."""

    executions: list[Listed]
    upto: int
    oldest: int  # the first that is still kept
    problem: str = ""  # why no more results will come


class Notification(msgspec.Struct, frozen=True):
    """An execution of a channel has results for these subscriptions."""

    channel: str
    execution: int
    subscriptions: list[str]


class Notifications(msgspec.Struct, frozen=True):
    """The answer to a long poll; the next one asks for what comes after `cursor`."""

    cursor: int
    notifications: list[Notification] = []


class _Results(msgspec.Struct):
    results: dict[str, msgspec.Raw]


class _Rates(msgspec.Struct):
    rates: dict[str, float]


class DataCluster:
    """`locate` returns its URL, empty while it is away. At most `requests` at a time, not counting the long poll."""

    def __init__(self, locate: Callable[[], Awaitable[str]], token: str = "", requests: int = 8) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = HttpClient(requests, headers=headers)
        self._polling = HttpClient(1, headers=headers)
        self._locate = locate
        self._url = ""

    async def close(self) -> None:
        await self._http.close()
        await self._polling.close()

    async def put_broker(self, broker: str, url: str) -> None:
        await self._ask("PUT", f"/brokers/{broker}", {"url": url})

    async def subscribe(self, broker: str, wanted: Sequence[Wanted]) -> list[Granted]:
        answer = await self._ask("POST", "/subscriptions", {"broker": broker, "wanted": wanted})
        granted = _decoded(answer, _Grants).subscriptions
        if len(granted) != len(wanted):
            raise DataClusterFailed(f"the data cluster answered {len(granted)} of {len(wanted)} subscriptions")
        return granted

    async def unsubscribe(self, broker: str, subscription: str) -> None:
        await self._ask("DELETE", f"/subscriptions/{subscription}", query={"broker": broker})

    async def executions(self, subscription: str, after: int) -> Executions:
        query = {"after": after, "limit": LIST_LIMIT}
        answer = await self._ask("GET", f"/subscriptions/{subscription}/executions", query=query)
        return _decoded(answer, Executions)

    async def results(self, channel: str, execution: int, subscriptions: Sequence[str]) -> dict[str, msgspec.Raw]:
        """The rows of each subscription, as JSON."""
        wanted = {"channel": channel, "execution": execution, "subscriptions": subscriptions}
        return _decoded(await self._ask("POST", "/results", wanted), _Results).results

    async def notifications(self, broker: str, after: int | None) -> Notifications:
        """Notifications after the cursor, waiting for them; without a cursor, the newest one at once."""
        query: dict[str, Any] = {"wait_s": NOTIFICATION_WAIT_S}
        if after is not None:
            query["after"] = after
        answer = await self._request(self._polling, "GET", f"/brokers/{broker}/notifications", None, query)
        return _decoded(answer, Notifications)

    async def rates(self) -> dict[str, float]:
        return _decoded(await self._ask("GET", "/rates"), _Rates).rates

    async def _ask(self, method: str, path: str, body: Any = None, query: dict[str, Any] | None = None) -> bytes:
        return await self._request(self._http, method, path, body, query)

    async def _request(
        self, http: HttpClient, method: str, path: str, body: Any, query: dict[str, Any] | None
    ) -> bytes:
        self._url = self._url or await self._locate()
        if not self._url:
            raise Away("no data cluster is running: start `nearcast data`")
        content = msgspec.json.encode(body) if body is not None else None
        headers = {"Content-Type": "application/json"} if content is not None else None
        timeout_s = ANSWER_S + (query or {}).get("wait_s", 0.0)
        try:
            answer = await http.request(
                method, self._url + path, content=content, params=query, headers=headers, timeout=timeout_s
            )
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            url, self._url = self._url, ""  # it may come back elsewhere
            raise Away(f"the data cluster at {url} does not answer ({str(error) or type(error).__name__})") from None
        if answer.status_code == 500:
            raise DataClusterFailed(f"the data cluster failed on {method} {path}: {answer.text[:200]}")
        if answer.status_code > 500:
            raise Away(f"the data cluster failed: {answer.status_code} {answer.text[:200]}")
        if answer.status_code in (404, 410):
            raise Gone(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
        if answer.status_code >= 400:
            raise DataClusterRefused(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
        return answer.content


def _decoded(answer: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise DataClusterFailed(f"the data cluster's answer cannot be read: {error}") from None
