"""Registering: who may take a name that is free.

    open      anybody
    secret    who shows the shared secret: `Authorization: Bearer SECRET`
    closed    nobody: the operator does it, with `nearcast users add`
    URL       whom the operator's own service lets in: it gets the request, and answers 2xx or not

A new token for a user who shows a good one is none of this: she has her name already.
"""

from __future__ import annotations

import asyncio
import hmac
from typing import Protocol

import httpx
import msgspec

from nearcast.errors import AccessDenied, ClusterError, UsageError

HOOK_S = 5.0  # for the answer of the operator's service
HOOKS_AT_ONCE = 16  # questions to it; while so many wait, others are told to try again
SECRET_CHARACTERS_MIN = 16  # 600 tries a minute are allowed: see registrations_per_minute
SECRET_VARIABLE = "NEARCAST_REGISTER_SECRET"  # of the environment
OPEN, SECRET, CLOSED = "open", "secret", "closed"


class Applicant(msgspec.Struct, frozen=True):
    """Who asks, and how: for whoever decides."""

    user: str
    address: str
    body: bytes  # of the request, with one name in it
    authorization: bytes  # the header of this name


class Registrar(Protocol):
    async def admit(self, applicant: Applicant) -> None:
        """Returns if the applicant may have a name; AccessDenied if not, ClusterError if nobody can tell now."""

    async def close(self) -> None: ...


def check_rule(rule: str, secret: str) -> None:
    """UsageError says what is wrong with a rule."""
    if rule == SECRET and len(secret) < SECRET_CHARACTERS_MIN:
        raise UsageError(
            f"registering by secret needs one of at least {SECRET_CHARACTERS_MIN} characters: set {SECRET_VARIABLE}"
        )
    if rule not in (OPEN, SECRET, CLOSED) and not rule.startswith(("http://", "https://")):
        raise UsageError(f"registering cannot be {rule!r}: use {OPEN}, {SECRET}, {CLOSED} or a URL")


def registrar(rule: str, secret: str) -> Registrar:
    """For a rule that was checked."""
    if rule == OPEN:
        return _Open()
    if rule == SECRET:
        return _Secret(secret)
    return _Closed() if rule == CLOSED else _Hook(rule)


class _Open:
    async def admit(self, applicant: Applicant) -> None:
        pass

    async def close(self) -> None:
        pass


class _Closed(_Open):
    async def admit(self, applicant: Applicant) -> None:
        raise AccessDenied(
            f"nobody registers here: ask the operator for a token, who gets it by nearcast users add {applicant.user}"
        )


class _Secret(_Open):
    def __init__(self, secret: str) -> None:
        self._shown = f"Bearer {secret}".encode()

    async def admit(self, applicant: Applicant) -> None:
        if not hmac.compare_digest(applicant.authorization, self._shown):
            raise AccessDenied("registering needs the shared secret: Authorization: Bearer SECRET, or secret=...")


class _Hook:
    """What cannot be asked is refused."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._http = httpx.AsyncClient(timeout=HOOK_S, trust_env=False, follow_redirects=False)
        self._asking = 0

    async def close(self) -> None:
        await self._http.aclose()

    async def admit(self, applicant: Applicant) -> None:
        if self._asking >= HOOKS_AT_ONCE:
            raise ClusterError("too many registrations wait for the operator's service: try again later")
        self._asking += 1
        try:
            async with asyncio.timeout(HOOK_S):
                answer = await self._http.post(self._url, content=applicant.body, headers=_headers(applicant))
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError):
            raise ClusterError("the operator's service for registering does not answer: try again later") from None
        finally:
            self._asking -= 1
        if answer.status_code >= 500:
            raise ClusterError(f"the operator's service for registering failed ({answer.status_code}): try again later")
        if not answer.is_success:
            raise AccessDenied(f"the operator's service did not let {applicant.user} in ({answer.status_code})")


def _headers(applicant: Applicant) -> dict[bytes, bytes]:
    headers = {b"Content-Type": b"application/json", b"X-Forwarded-For": applicant.address.encode()}
    return headers | ({b"Authorization": applicant.authorization} if applicant.authorization else {})
