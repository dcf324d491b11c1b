"""The registrar: decides who may register a free name at a gateway, by the rule of `--register`."""

from __future__ import annotations

import asyncio
import hmac
import ssl
from typing import Protocol

import httpx
import msgspec

from nearcast.errors import AccessDenied, ClusterError, UsageError

HOOK_S = 5.0  # for the answer of the operator's service
HOOKS_AT_ONCE = 16  # questions to it; while this many wait, others must try again later
SECRET_CHARACTERS_MIN = 16  # 600 tries a minute are allowed: see registrations_per_minute
SECRET_VARIABLE = "NEARCAST_REGISTER_SECRET"  # of the environment
OPEN, SECRET, CLOSED = "open", "secret", "closed"


class Applicant(msgspec.Struct, frozen=True):
    """What a registrar knows of a request for a name."""

    user: str
    address: str
    body: bytes  # of the request, with one name in it
    authorization: bytes  # the header of this name


class Registrar(Protocol):
    """Decides who may register a free name.

        open      anyone
        secret    clients that present the shared secret: `Authorization: Bearer SECRET`
        closed    no one: the operator registers users, with `nearcast users add`
        URL       clients that the operator's own service admits: it gets the request, and answers 2xx or not

    A user who presents a valid token and asks for a new one is not subject to this, because she already has her name.
    """

    async def admit(self, applicant: Applicant) -> None:
        """Returns if the applicant may have a name; AccessDenied if not, ClusterError if it cannot be decided now."""


def check_rule(rule: str, secret: str) -> None:
    """Raises UsageError, which says what is wrong with the rule."""
    if rule == SECRET and len(secret) < SECRET_CHARACTERS_MIN:
        raise UsageError(
            f"--register secret needs a secret of at least {SECRET_CHARACTERS_MIN} characters: set {SECRET_VARIABLE}"
        )
    if rule not in (OPEN, SECRET, CLOSED) and not rule.startswith(("http://", "https://")):
        raise UsageError(f"bad registration rule {rule!r}: use {OPEN}, {SECRET}, {CLOSED} or a URL")


def registrar(rule: str, secret: str) -> Registrar:
    """The registrar for a rule that was checked."""
    if rule == OPEN:
        return _Open()
    if rule == SECRET:
        return _Secret(secret)
    return _Closed() if rule == CLOSED else _Hook(rule)


class _Open:
    async def admit(self, applicant: Applicant) -> None:
        pass


class _Closed(_Open):
    async def admit(self, applicant: Applicant) -> None:
        raise AccessDenied(
            f"registration is closed: ask the operator for a token (nearcast users add {applicant.user})"
        )


class _Secret(_Open):
    def __init__(self, secret: str) -> None:
        self._shown = f"Bearer {secret}".encode()

    async def admit(self, applicant: Applicant) -> None:
        if not hmac.compare_digest(applicant.authorization, self._shown):
            raise AccessDenied("registration needs the shared secret: Authorization: Bearer SECRET, or secret=...")


class _Hook:
    """Asks the operator's service. An applicant is refused if the service cannot be asked."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._trust = ssl.create_default_context()  # made once: reading all certificates takes longer than an answer
        self._asking = 0

    async def admit(self, applicant: Applicant) -> None:
        if self._asking >= HOOKS_AT_ONCE:
            raise ClusterError("too many registrations are waiting for the operator's service: try again later")
        self._asking += 1
        try:
            answer = await self._answer(applicant)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError):
            raise ClusterError("the operator's registration service does not answer: try again later") from None
        finally:
            self._asking -= 1
        if answer.status_code >= 500:
            raise ClusterError(f"the operator's registration service failed ({answer.status_code}): try again later")
        if not answer.is_success:
            raise AccessDenied(f"the operator's service did not admit {applicant.user} ({answer.status_code})")

    async def _answer(self, applicant: Applicant) -> httpx.Response:
        """Uses its own client, because it may be cancelled: a shared one would lose the connection for good."""
        async with (
            asyncio.timeout(HOOK_S),
            httpx.AsyncClient(timeout=HOOK_S, trust_env=False, verify=self._trust) as http,
        ):
            return await http.post(self._url, content=applicant.body, headers=_headers(applicant))


def _headers(applicant: Applicant) -> dict[bytes, bytes]:
    headers = {b"Content-Type": b"application/json", b"X-Forwarded-For": applicant.address.encode()}
    return headers | ({b"Authorization": applicant.authorization} if applicant.authorization else {})
