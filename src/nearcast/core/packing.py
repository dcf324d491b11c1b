"""Packing: what one client publishes on one topic, as the commands that servers get.

Made for many messages at once: what they have in common is looked up once.
"""

from __future__ import annotations

from collections.abc import Iterable

from nearcast.core.log import Entry
from nearcast.core.wire import CRLF, DATA, publish_command, word_of


class Packing:
    __slots__ = ("_first", "_packer", "_prefix", "_publisher", "_size", "_topic")

    def __init__(self, topic: bytes, publisher: int, first: int) -> None:
        self._topic = topic
        self._publisher = publisher
        self._first = first  # number of the first message
        self._size = 0  # of the payload the packer is for: mostly they are all alike
        self._packer, self._prefix = publish_command(topic, 0)

    def commands(self, entries: Iterable[Entry], epoch: int) -> list[bytes]:
        publisher, first = self._publisher, self._first
        size, pack, prefix = self._size, self._packer.pack, self._prefix
        commands: list[bytes] = []
        for sequence, payload, time_ns in entries:
            if type(payload) is not bytes or sequence == first:
                commands.append(self._command(sequence, payload, time_ns, epoch))
                continue
            if len(payload) != size:
                size = self._size = len(payload)
                self._packer, self._prefix = publish_command(self._topic, size)
                pack, prefix = self._packer.pack, self._prefix
            commands.append(pack(prefix, DATA, epoch, publisher, sequence, time_ns, payload, CRLF))
        return commands

    def _command(self, sequence: int, payload: bytes | None, time_ns: int, epoch: int) -> bytes:
        """One that is not like the others."""
        body = payload or b""
        packer, prefix = publish_command(self._topic, len(body))
        word = self.word(sequence, payload)
        return packer.pack(prefix, word, epoch, self._publisher, sequence, time_ns, body, CRLF)

    def word(self, sequence: int, payload: bytes | None) -> int:
        """The kind of a frame."""
        return word_of(payload, first=sequence == self._first > 1)
