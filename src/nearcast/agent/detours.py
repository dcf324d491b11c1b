"""Detours: other addresses than those that agents announce, for networks that translate addresses."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

log = logging.getLogger("nearcast.agent")

_decode = msgspec.json.Decoder(dict[str, str]).decode


class Detours:
    """A table in a JSON file, {announced: used instead}. It is read again when it changes.

    It may come later. Until then nobody is where it says: distances to the wrong addresses would mislead.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._read: tuple[int, int] | None = None  # what the file looked like when it was last read
        self._table: dict[str, str] | None = {} if path is None else None

    def look(self) -> None:
        """Read the file if it is new. One that cannot be read changes nothing."""
        if self._path is None:
            return
        try:
            found = self._path.stat()
        except OSError:
            return
        if (found.st_mtime_ns, found.st_size) != self._read:
            self._read = (found.st_mtime_ns, found.st_size)
            try:
                self._table = _decode(self._path.read_bytes())
            except (OSError, msgspec.DecodeError) as error:
                log.warning("%s is not a table of addresses, and changes nothing: %s", self._path, error)

    def resolve(self, address: str) -> str:
        """Raises LookupError as long as there is no table."""
        if self._table is None:
            raise LookupError(f"{self._path} is not there yet")
        return self._table.get(address, address)
