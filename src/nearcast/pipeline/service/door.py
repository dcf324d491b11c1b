"""What each request passes first: the token, the kind of its body, and the limit of it.

There are two tokens. An operator's opens everything; that of gateways, which stand where the users are, what gateways
need: to hold subscriptions and to fetch results.

A page of any site may let a browser send forms and plain text to an address that only the browser reaches, as
127.0.0.1. Other kinds of bodies it may not send without asking the server first, and this one never agrees.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
from starlette.exceptions import HTTPException

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

_KINDS = (b"application/json", b"application/octet-stream", b"text/csv")
_WITH_BODY = ("POST", "PUT", "PATCH")
_OPEN_PATHS = ("/health",)  # a load balancer asks without a token
_GATEWAY_PARTS = ("brokers", "subscriptions", "results", "rates")  # the beginnings of the paths that gateways use


class Door:
    """ASGI middleware: 401 without a token, 403 with that of gateways where it does not suffice, 415 for a body of a
    kind that forms have, 413 for one above the limit, also if it hides its length."""

    def __init__(self, app: App, token: str, gateway_token: str, body_bytes: Callable[[str], int]) -> None:
        self._app = app
        self._token = token.encode()
        self._gateway_token = gateway_token.encode()
        self._body_bytes = body_bytes  # path -> limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        refusal = self._refusal(scope["path"], headers)
        if refusal is not None:
            await _refuse(send, *refusal)
            return
        if scope["method"] in _WITH_BODY and not _is_of_known_kind(headers):
            known = ", ".join(kind.decode() for kind in _KINDS)
            await _refuse(send, 415, "the body is of no known type", f"send the header Content-Type: one of {known}")
            return
        most = self._body_bytes(scope["path"])
        if _length(headers) > most:
            await _refuse(send, 413, *_too_large(most))
            return
        await self._measured(scope, receive, send, most)

    def _refusal(self, path: str, headers: dict[bytes, bytes]) -> tuple[int, str, str] | None:
        if not self._token or path in _OPEN_PATHS:
            return None
        if self._shows(headers, self._token):
            return None
        if not self._shows(headers, self._gateway_token):
            hint = "send the header Authorization: Bearer TOKEN with the data cluster's token"
            return 401, "no valid token", hint
        if path.lstrip("/").partition("/")[0] in _GATEWAY_PARTS:
            return None
        return 403, "the token of gateways does not open this", "use the operator's: NEARCAST_DATA_TOKEN"

    @staticmethod
    def _shows(headers: dict[bytes, bytes], token: bytes) -> bool:
        """In a time that does not tell how much of it is right."""
        kind, _, shown = headers.get(b"authorization", b"").partition(b" ")
        return bool(token) and kind.lower() == b"bearer" and hmac.compare_digest(shown.strip(), token)

    async def _measured(self, scope: Scope, receive: Receive, send: Send, most: int) -> None:
        """A body sent in chunks has no length in its header: count it as it comes."""
        received = 0

        async def counted() -> MutableMapping[str, Any]:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > most:
                raise HTTPException(413, _too_large(most)[0])
            return message

        await self._app(scope, counted, send)


def _is_of_known_kind(headers: dict[bytes, bytes]) -> bool:
    return headers.get(b"content-type", b"").partition(b";")[0].strip().lower() in _KINDS


def _length(headers: dict[bytes, bytes]) -> int:
    text = headers.get(b"content-length", b"0")
    return int(text) if text.isdigit() else 0


def _too_large(most: int) -> tuple[str, str]:
    return f"the body is larger than {most} bytes", "send less at once"


async def _refuse(send: Send, status: int, problem: str, hint: str) -> None:
    body = msgspec.json.encode({"problem": problem, "hint": hint})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
