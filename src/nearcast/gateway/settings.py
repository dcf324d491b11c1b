"""A gateway's settings: its limits and times, and its rules on addresses, registration and topics.

`Proxies` finds the address behind a request, a `Registrar` decides who may register, and `Rights` say which topics
users may use. `GatewaySettings` has every limit and time, each with its unit and what happens when it is reached.
"""

from __future__ import annotations

import asyncio
import hmac
import re
import ssl
from collections.abc import Iterable
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from itertools import pairwise
from typing import Protocol

import httpx
import msgspec

from nearcast.core.model.tokens import LIFE_S
from nearcast.errors import AccessDenied, ClusterError, UsageError

# --- addresses


_CUSTOMER_BITS = 64


class Proxies:
    """The trusted proxies, as addresses or networks in CIDR notation.

    Behind a proxy all requests come from the proxy's address. A trusted proxy appends the address that it received the
    request from to `X-Forwarded-For`. So the list is read from its end, as long as the proxies are trusted; the part
    before that can have been written by anyone. An IPv6 address counts as its 64-bit network, which is what one
    customer has.
    """

    def __init__(self, networks: Iterable[str] = ()) -> None:
        self._networks = [_network(text) for text in networks]

    def address(self, peer: str, forwarded: Iterable[str] = ()) -> str:
        """The address behind a request. `forwarded`: the values of its X-Forwarded-For headers, in order."""
        found = _address(peer)
        chain = [part.strip() for value in forwarded for part in value.split(",")]
        while chain and found is not None and self._trusts(found):
            told = _address(chain.pop())
            if told is None:
                break  # not an address: the last valid one counts
            found = told
        return _shown(found) if found is not None else peer

    def _trusts(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._networks)


def _network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise UsageError(f"bad proxy {text!r}: give an address or a network, such as 10.0.0.0/8 ({error})") from None


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text.strip("[]"))
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def _shown(address: IPv4Address | IPv6Address) -> str:
    if isinstance(address, IPv4Address):
        return str(address)
    return str(IPv6Network((address, _CUSTOMER_BITS), strict=False))


# --- registering


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


# --- rights on topics


_USER = "{user}"
_WILD = re.compile(r"[*?]")
_ANY = "\0*"  # for a * in a pattern, between the parts of an expression: escaped text has no bare *


class Act(StrEnum):
    """What a user does with a topic."""

    PUBLISH = "publish"
    SUBSCRIBE = "subscribe"


class Rule(msgspec.Struct, frozen=True):
    """One pattern, split at each `{user}`. `apart`: characters that a name may not have."""

    parts: tuple[str, ...]
    apart: str

    @classmethod
    def read(cls, pattern: str) -> Rule:
        """Raises UsageError, which says what is wrong with the pattern."""
        if not pattern:
            raise UsageError("the pattern is empty: use * for all topics")
        parts = tuple(pattern.split(_USER))
        neighbours: list[str] = []
        for before, after in pairwise(parts):
            neighbours += [before[-1:]] if _WILD.search(before) else []
            neighbours += [after[:1]] if _WILD.search(after) else []
        if any(sign in ("", "*", "?") for sign in neighbours):
            raise UsageError(f"pattern {pattern!r}: put a character, such as a dot, between {_USER} and * or ?")
        return cls(parts, "".join(neighbours))

    def matches(self, user: str, topic: str) -> bool:
        if any(sign in user for sign in self.apart):
            return False
        return _compiled(self, user if len(self.parts) > 1 else "").fullmatch(topic) is not None


@lru_cache(maxsize=10_000)
def _compiled(rule: Rule, user: str) -> re.Pattern[str]:
    first, *others = re.escape(user).join(map(_expression, rule.parts)).split(_ANY)
    if not others:
        return re.compile(first, re.DOTALL)
    # The text between two * is matched at the first place where it occurs, without backtracking: backtracking could
    # take hours for a topic that is made to be nearly allowed, and would allow nothing more.
    between = "".join(f"(?>.*?{part})" for part in others[:-1])
    return re.compile(f"{first}{between}.*{others[-1]}", re.DOTALL)


def _expression(part: str) -> str:
    return re.escape(part).replace(r"\*", _ANY).replace(r"\?", ".")


class Rights:
    """Which topics the users of one gateway may publish to and subscribe to. What no rule allows is refused.

    A rule is `publish:PATTERN` or `subscribe:PATTERN`. In a pattern, `*` stands for any characters, `?` for one, and
    `{user}` for the name of the logged-in user. Special characters in that name stand for themselves.

    No user may reach the topics of another: with `{user}.*`, the user `ann` may use `ann.x`, and would therefore also
    get all topics of a user `ann.b`. The character between `{user}` and a `*` or `?` separates the names. So there must
    be one, and the rule grants nothing to a user whose name contains it.
    """

    def __init__(self, rules: Iterable[str] = ()) -> None:
        self._rules: dict[Act, list[Rule]] = {act: [] for act in Act}
        for text in rules:
            act, colon, pattern = text.partition(":")
            if not colon or act not in set(Act):
                raise UsageError(f"bad right {text!r}: use publish:PATTERN or subscribe:PATTERN")
            self._rules[Act(act)].append(Rule.read(pattern))

    def check(self, act: Act, user: str, topic: str) -> None:
        """Raises AccessDenied if no rule allows it."""
        if not any(rule.matches(user, topic) for rule in self._rules[act]):
            how = f"--allow {act}:PATTERN of the gateway's agent"
            raise AccessDenied(f"no right to {act} to topic {topic[:100]!r}: the operator allows topics with {how}")


# --- limits and times


class GatewaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What one gateway allows. The defaults suit a broker with a few thousand subscribers."""

    # Before authentication
    connections: int = 10_000  # sessions in total; more are refused
    unknown_per_address: int = 256  # sessions of one address that have not logged in yet; more are refused
    login_s: float = 5.0  # a session that has not logged in by then is ended
    refused_logins_per_minute: int = 30  # of one address; then it must wait
    registrations_per_minute: int = 600  # of one address; more are refused
    frame_bytes: int = 64 << 10  # a longer frame of a subscriber ends its session
    origins: tuple[str, ...] = ()  # web pages of other hosts that may connect, such as https://example.com
    proxies: tuple[str, ...] = ()  # whose X-Forwarded-For is believed: addresses or networks

    # Of users
    register: str = OPEN  # who may take a free name: open, secret, closed or a URL; see `Registrar`
    register_secret: str = ""
    allow: tuple[str, ...] = ()  # topics they may use: publish:PATTERN, subscribe:PATTERN; see `Rights`

    # Of one session
    operations: int = 64  # not answered yet; more are refused
    subscriptions: int = 256  # of one user; more are refused
    topics: int = 256  # of one session; more are refused
    new_topics_per_minute: int = 300  # of one user: names not used at this gateway before; more are refused
    outbox_frames: int = 1000  # results waiting for a slow consumer; the rest is caught up from storage later
    outbox_bytes: int = 4 << 20
    message_frames: int = 1000  # topic messages waiting for a slow consumer; then the oldest are dropped, with a gap
    message_bytes: int = 4 << 20
    stall_s: float = 30.0  # a consumer that reads nothing for this long is disconnected
    poll_s: float = 60.0  # a long-poll session without a poll for this long ends

    # Of the gateway
    catch_up_executions: int = 1000  # how many past executions a subscriber gets; older ones are reported as missed
    results_kept: int = 256  # fetched executions kept for sessions that catch up
    results_kept_bytes: int = 64 << 20
    requests: int = 8  # to the data cluster at a time, not counting the long poll
    token_s: float = LIFE_S  # how long a token is valid
    forget_days: float | None = 90.0  # users not seen for this long are forgotten; None keeps all

    def __post_init__(self) -> None:
        for name, value in msgspec.structs.asdict(self).items():
            if isinstance(value, (int, float)) and value <= 0:
                raise UsageError(f"gateway setting {name} is {value}: it must be more than 0")
        for origin in self.origins:
            if not origin.startswith(("http://", "https://")) or origin.count("/") != 2:
                raise UsageError(f"bad origin {origin!r}: give scheme and host, such as https://example.com")
        Proxies(self.proxies)
        Rights(self.allow)
        check_rule(self.register, self.register_secret)


DEFAULT_SETTINGS = GatewaySettings()
