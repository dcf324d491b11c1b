"""Holder links: connections to replicas that have the parts of lives that have ended (PROTOCOL "Logs").

A holder was sealed: it follows nobody any more, and nothing is appended there. So it needs no lease, and what is read
there is final. The cursors of groups are there too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.core.model.names import inbox_channel
from nearcast.core.model.settings import NEVER_S
from nearcast.core.wire.backend import Flow, LinkRefused

if TYPE_CHECKING:
    from nearcast.core.client.machine import Client
    from nearcast.core.wire.valkey import ValkeyLink

ALWAYS_S = 1e18  # what is final needs no lease
PROBE_S = 0.5


class HolderLink:
    """The link to the holder of one life. Flows are called when it is up and when it is gone, as with other links."""

    def __init__(self, client: Client, life: str, url: str) -> None:
        self.life = life
        self.name = holder_name(life)
        self.url = url
        self.link: ValkeyLink | None = None
        self.connecting = False
        self.retry_at_s = NEVER_S
        self.asked_s: float | None = None  # since when an answer is owed that shows that the server is there
        self.problem = ""
        self._client = client
        self._waiting: dict[Flow, None] = {}
        self._probed_s = NEVER_S

    def want(self, flow: Flow, now_s: float) -> None:
        """Call `flow.linked` when the link is up, which may be now."""
        if self.link is not None and self.link.up:
            flow.linked(self.link, now_s)
        else:
            self._waiting[flow] = None

    def greeted(self, now_s: float) -> None:
        assert self.link is not None
        self.link.subscribe(inbox_channel(self._client.client_id))  # by which members of a group see each other
        self.link.read_seal(self._seal_read)

    def _seal_read(self, life: str, now_s: float) -> None:
        link = self.link
        if link is None or life != self.life:
            raise LinkRefused(f"the server holds {life or 'nothing'}, not {self.life}")
        link.broker, link.up, link.lease_until_s = self.name, True, ALWAYS_S
        self.asked_s, self.problem = None, ""
        waiting, self._waiting = self._waiting, {}
        for flow in waiting:
            flow.linked(link, now_s)

    def probe(self, now_s: float) -> None:
        if self.link is not None and now_s - self._probed_s >= PROBE_S:
            self.asked_s = self._probed_s = now_s
            self.link.barrier(self._answered)

    def _answered(self, now_s: float) -> None:
        self.asked_s = None

    def take(self, now_s: float) -> bytes:
        return self.link.take() if self.link is not None else b""

    def lost(self, now_s: float) -> None:
        link, self.link = self.link, None
        if link is not None:
            self._client.readers.announcements.link_lost(link)
            for flow in list(link.users):
                flow.unlinked(link, now_s)


def holder_name(life: str) -> str:
    return f"{life} holder"
