"""A gateway's settings: every limit and time, each with its unit and what happens when it is reached."""

from __future__ import annotations

import msgspec

from nearcast.core.model.tokens import LIFE_S
from nearcast.errors import UsageError
from nearcast.gateway.access import Proxies
from nearcast.gateway.registrar import OPEN, check_rule
from nearcast.gateway.rights import Rights


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
