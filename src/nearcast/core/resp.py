"""RESP commands as bytes. Replies are parsed by hiredis in `link.py`."""

from __future__ import annotations


def command(*parts: bytes | str | int) -> bytes:
    """One command as a RESP array of bulk strings."""
    out = [b"*%d\r\n" % len(parts)]
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode("utf-8", "surrogateescape")
        out.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(out)


def publish_prefix(channel: bytes, payload_bytes: int) -> bytes:
    """A PUBLISH command up to its payload, which is followed by CR LF."""
    return b"*3\r\n$7\r\nPUBLISH\r\n$%d\r\n%b\r\n$%d\r\n" % (len(channel), channel, payload_bytes)
