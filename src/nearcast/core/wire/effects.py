"""What the machines ask of their driver. A machine does no I/O itself: it answers inputs with these."""

from __future__ import annotations

import msgspec


class Connect(msgspec.Struct, frozen=True):
    """Open a connection for the link of this name, then call `connected` or `lost`."""

    link: str
    url: str


class Disconnect(msgspec.Struct, frozen=True):
    """Close the connection of this link, if there is one; it is not reported as lost."""

    link: str


class Rename(msgspec.Struct, frozen=True):
    """The link that was opened under one name continues under another."""

    link: str
    name: str


class Done(msgspec.Struct, frozen=True):
    """What the caller asked for under this token is done."""

    token: object
    value: object = None


class Failed(msgspec.Struct, frozen=True):
    """What the caller asked for under this token cannot be done."""

    token: object
    error: Exception


Effect = Connect | Disconnect | Rename | Done | Failed
