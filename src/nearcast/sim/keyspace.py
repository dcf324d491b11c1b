"""The keys of a simulated server: strings, hashes and streams, some with a time to end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from nearcast.sim.replies import WRONG_TYPE, CommandError

Hash = dict[bytes, bytes]
RecordId = tuple[int, int]  # milliseconds, and a number among the records of one


class Stream:
    """Records in the order of their ids, and how many bytes they are: a stream is long, and its size asked often."""

    __slots__ = ("last_id", "records", "size_bytes")

    def __init__(self) -> None:
        self.last_id: RecordId = (0, 0)
        self.records: deque[tuple[RecordId, list[bytes]]] = deque()
        self.size_bytes = 0

    def add(self, record_id: RecordId, fields: list[bytes]) -> None:
        self.last_id = record_id
        self.records.append((record_id, fields))
        self.size_bytes += sum(map(len, fields))

    def trim(self, limit: int) -> None:
        while len(self.records) > limit:
            _, fields = self.records.popleft()
            self.size_bytes -= sum(map(len, fields))


Value = bytes | Hash | Stream


class Keyspace:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._values: dict[bytes, Value] = {}
        self._ends_ms: dict[bytes, int] = {}

    @property
    def now_ms(self) -> int:
        return int(self._clock() * 1000)

    @property
    def size_bytes(self) -> int:
        return sum(len(key) + _size_bytes(value) for key, value in self._values.items())

    def clear(self) -> None:
        self._values.clear()
        self._ends_ms.clear()

    # --- keys of any kind

    def __contains__(self, key: bytes) -> bool:
        return self._value(key) is not None

    def delete(self, key: bytes) -> bool:
        """Whether there was such a key."""
        present = key in self
        self._values.pop(key, None)
        self._ends_ms.pop(key, None)
        return present

    def end_at(self, key: bytes, when_ms: int) -> None:
        """Let a key end then; one that should have ended already is gone at once."""
        if when_ms <= self.now_ms:
            self.delete(key)
        else:
            self._ends_ms[key] = when_ms

    def left_ms(self, key: bytes) -> int | None:
        """Time left of a key that is there; None if it has no end."""
        when_ms = self._ends_ms.get(key)
        return None if when_ms is None else when_ms - self.now_ms

    def _value(self, key: bytes) -> Value | None:
        if key in self._ends_ms and self.now_ms > self._ends_ms[key]:
            del self._values[key], self._ends_ms[key]
        return self._values.get(key)

    # --- strings

    def string(self, key: bytes) -> bytes | None:
        value = self._value(key)
        if isinstance(value, dict | Stream):
            raise CommandError(WRONG_TYPE)
        return value

    def put(self, key: bytes, value: bytes) -> None:
        """Whatever was there is replaced, its end included."""
        self._values[key] = value
        self._ends_ms.pop(key, None)

    def change(self, key: bytes, value: bytes) -> None:
        """A new value for a string that keeps its end."""
        self._values[key] = value

    # --- hashes

    def fields(self, key: bytes) -> Hash:
        """The fields of a hash, to read; a key that is not there has none."""
        value = self._value(key)
        if isinstance(value, bytes | Stream):
            raise CommandError(WRONG_TYPE)
        return {} if value is None else value

    def set_fields(self, key: bytes, pairs: Hash) -> int:
        """The number of fields that are new."""
        fields = self.fields(key)
        before = len(fields)
        fields.update(pairs)
        self._values[key] = fields
        return len(fields) - before

    def delete_fields(self, key: bytes, names: list[bytes]) -> int:
        fields = self.fields(key)
        deleted = sum(fields.pop(name, None) is not None for name in names)
        if deleted and not fields:
            self.delete(key)
        return deleted

    # --- streams

    def stream(self, key: bytes) -> Stream | None:
        value = self._value(key)
        if isinstance(value, bytes | dict):
            raise CommandError(WRONG_TYPE)
        return value

    def put_stream(self, key: bytes, stream: Stream) -> None:
        self._values[key] = stream


def _size_bytes(value: Value) -> int:
    if isinstance(value, Stream):
        return value.size_bytes
    return len(value) if isinstance(value, bytes) else sum(len(name) + len(data) for name, data in value.items())
