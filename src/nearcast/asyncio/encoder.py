"""The encoder: values of the program to bytes and back, by redis-py's rules."""

from __future__ import annotations

import msgspec

from nearcast.errors import UsageError

Encodable = bytes | bytearray | memoryview | str | int | float
Decoded = bytes | str


class Encoder(msgspec.Struct, frozen=True):
    encoding: str = "utf-8"
    encoding_errors: str = "strict"
    decode_responses: bool = False

    def encode(self, value: Encodable) -> bytes:
        if isinstance(value, bytes):
            return value
        if isinstance(value, str):
            return value.encode(self.encoding, self.encoding_errors)
        if isinstance(value, (bytearray, memoryview)):
            return bytes(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return repr(value).encode()
        raise UsageError(f"cannot send a {type(value).__name__}: convert it to bytes, str, int or float first")

    def decode(self, data: bytes) -> Decoded:
        return data.decode(self.encoding, self.encoding_errors) if self.decode_responses else data

    def normal(self, name: Encodable) -> Decoded:
        """A channel as messages name it, and so the key under which its handler is kept."""
        return self.decode(self.encode(name))
