"""The log readers of a client, and how they hear of what is appended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.core.client.log_reader import LogReader, Start
from nearcast.core.model.cursors import group_problem
from nearcast.errors import UsageError

if TYPE_CHECKING:
    from nearcast.core.client.machine import Client
    from nearcast.core.client.part_reader import PartReader
    from nearcast.core.wire.backend import ClientLink

READERS_MAX = 1000


class Readers:
    """All log readers of one client. `woken` are those that have something for their program."""

    def __init__(self, client: Client) -> None:
        self.woken: set[LogReader] = set()
        self.announcements = Announcements()
        self._client = client
        self._open: dict[LogReader, None] = {}

    def read(
        self, name: str, start: Start | float, *, group: str = "", holds: bool = False, token: object, now_s: float
    ) -> LogReader:
        """Read a log; `Done(token)` when it is known everywhere where to begin."""
        log = next((log for log in self._client.membership.logs if log.name == name), None)
        problem = group_problem(group) if group else ""
        if log is None:
            known = ", ".join(sorted(log.name for log in self._client.membership.logs)) or "none"
            problem = f"no log {name!r}; the cluster has: {known}"
        elif len(self._open) >= READERS_MAX:
            problem = f"this client has {READERS_MAX} readers: close some, or use more clients"
        elif group and any(other.log == log and other.is_in(group) for other in self._open):
            # A member is known by its client: both would own the same parts, and move each other's cursors back.
            problem = f"this client reads the log {name!r} in the group {group!r} already: use another client"
        if log is None or problem:
            raise UsageError(problem)
        reader = LogReader(self._client, log, start, group=group, holds=holds, token=token)
        self._open[reader] = None
        self._client.attend(reader)
        reader.membership_changed(now_s)
        return reader

    def membership_changed(self, now_s: float) -> None:
        for reader in list(self._open):
            reader.membership_changed(now_s)

    def closed(self, reader: LogReader) -> None:
        self._open.pop(reader, None)

    def close_all(self) -> None:
        for reader in list(self._open):
            reader.close()
            self.woken.add(reader)


class Announcements:
    """Which part readers hear of what is appended on a link: several may read the same part."""

    def __init__(self) -> None:
        self._following: dict[tuple[ClientLink, bytes], list[PartReader]] = {}

    def follow(self, link: ClientLink, part: PartReader) -> None:
        channel = part.keys.stream
        known = self._following.setdefault((link, channel), [])
        known.append(part)
        if len(known) == 1:
            link.control[channel] = lambda _, now_s: self._appended(link, channel, now_s)
            link.subscribe(channel, refused=lambda text, now_s: None)  # without the right, it is found a little later

    def unfollow(self, link: ClientLink, part: PartReader) -> None:
        channel = part.keys.stream
        known = self._following.get((link, channel), [])
        if part in known:
            known.remove(part)
            if not known:
                del self._following[link, channel]
                link.control.pop(channel, None)
                link.unsubscribe(channel)

    def link_lost(self, link: ClientLink) -> None:
        self._following = {key: parts for key, parts in self._following.items() if key[0] is not link}

    def _appended(self, link: ClientLink, channel: bytes, now_s: float) -> None:
        for part in list(self._following.get((link, channel), ())):
            part.appended(now_s)
