"""Repairs: a subscriber's requests to the publishers of a topic for what it missed (PROTOCOL, rules 6, 7 and 10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from nearcast.core.names import CONTROL
from nearcast.core.wire import Resync, encode_resync

if TYPE_CHECKING:
    from nearcast.core.attachment import Attachment
    from nearcast.core.client import Client
    from nearcast.core.lines import Lines

TRIES = 4
PUBLISHERS_MAX = 1000  # per request, so that a request stays small


class Repairs:
    def __init__(self, client: Client, topic: bytes, lines: Lines) -> None:
        self._client = client
        self._topic = topic
        self._lines = lines
        self._tries_left = 0
        self._next_s = 0.0

    @property
    def pending(self) -> bool:
        return self._tries_left > 0

    def ask(self, now_s: float) -> None:
        """Ask soon, at a moment of our own: many subscribers may have lost the same server."""
        self._tries_left = TRIES
        self._next_s = now_s + self._client.rng.random() * self._client.timing.resync_s / 4

    def tick(self, readers: Callable[[], list[Attachment] | None], now_s: float) -> None:
        """Send the request if it is time, once all the places where answers may come are open."""
        if not self._tries_left or now_s < self._next_s:
            return
        attachments = readers()
        if attachments is None:
            return
        self._tries_left -= 1
        self._next_s = now_s + self._client.timing.resync_s
        lasts = list(self._lines.last.items())
        for start in range(0, len(lasts), PUBLISHERS_MAX):
            wish = Resync(self._client.client_id, dict(lasts[start : start + PUBLISHERS_MAX]))
            for attachment in attachments:
                if attachment.link is not None:
                    attachment.link.tell(CONTROL + self._topic, encode_resync(wish))
