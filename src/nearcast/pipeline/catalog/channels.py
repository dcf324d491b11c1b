"""The channels in the catalogue: their texts, the results of checking them, and their subscribers' parameters.

`channel_numbers` outlives its channel: a channel created later under the same name continues the numbers, so that a
subscriber's cursor is never above an execution that is still to come.

The parameters of a subscription are stored in canonical form, so that equal ones from all brokers become one backend
subscription. Each value is coerced to the type that the channel declares. Text that can be read as that type is
accepted too, because a phone may take its parameters from a form. Canonical values are JSON: dates, times and decimals
are text.

A subscriber cannot choose the parameter `user`: it is the login name that the gateway reports.
"""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import json
import math
import re
import struct
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from nearcast.pipeline.catalog.database import CatalogFull, Conflict, Database, Row, RowReader, Unknown, WrongParameters
from nearcast.pipeline.channels.execution import Prepared
from nearcast.pipeline.channels.language import USER

# --- channels


_TABLES = """
CREATE TABLE IF NOT EXISTS channels (
    name TEXT PRIMARY KEY,
    text TEXT NOT NULL,
    definition TEXT NOT NULL,      -- JSON of a StoredChannel
    created_at REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS channel_numbers (
    channel TEXT PRIMARY KEY,
    version INTEGER NOT NULL DEFAULT 0,    -- of its subscriptions
    held INTEGER NOT NULL DEFAULT 0,       -- how many subscriptions that version has
    opened INTEGER NOT NULL DEFAULT 0,     -- the last execution that was opened
    committed INTEGER NOT NULL DEFAULT 0,  -- the last one that was committed
    oldest INTEGER NOT NULL DEFAULT 1      -- the first one whose results are kept
);
CREATE TABLE IF NOT EXISTS positions (     -- up to which batch a channel has read a dataset's new records
    channel TEXT NOT NULL,
    dataset TEXT NOT NULL,
    upto INTEGER NOT NULL,
    PRIMARY KEY (channel, dataset)
);
"""


class StoredChannel(msgspec.Struct, frozen=True, kw_only=True):
    """A channel that was checked and created."""

    name: str
    text: str
    parameters: dict[str, str]  # name -> Spark type, in the order of the text
    period_s: float
    continuous: bool
    new_datasets: tuple[str, ...]
    whole_datasets: tuple[str, ...]
    columns: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    created_at: float = 0.0
    from_execution: int = 1  # the first that runs this text: numbers continue when a channel is replaced


def described(prepared: Prepared) -> StoredChannel:
    """The part of a checked channel that is stored."""
    channel = prepared.channel
    return StoredChannel(
        name=channel.name,
        text=channel.text,
        parameters=dict(channel.parameters),
        period_s=channel.period_s,
        continuous=channel.continuous,
        new_datasets=channel.new_datasets,
        whole_datasets=channel.whole_datasets,
        columns=prepared.rewritten.columns,
        warnings=prepared.rewritten.warnings,
    )


class Numbers(msgspec.Struct, frozen=True):
    """How far a channel has got, and how many subscriptions it has."""

    version: int
    held: int
    opened: int
    committed: int
    oldest: int


class Channels:
    """Creates, replaces and drops channels. `has` says whether a StoredChannel is still the current one."""

    def __init__(self, database: Database, most: int) -> None:
        self._database = database
        self._most = most
        self._reader = RowReader("channel", _stored)
        database.create(_TABLES)

    def create(self, channel: StoredChannel, positions: dict[str, int]) -> bool:
        """Store it; it will see what comes after these positions of its NEW datasets. False if it exists already."""
        with self._database.transaction():
            if (there := self._row(channel.name)) is not None:
                if there["text"] == channel.text:
                    return False
                problem = f"channel {channel.name} exists with a different text"
                raise Conflict(problem, "choose another name, or replace it: CREATE OR REPLACE CHANNEL ...")
            if len(self.all()) >= self._most:
                raise CatalogFull(f"the limit of {self._most} channels is reached", "drop one, or raise the limit")
            self._database.run("INSERT OR IGNORE INTO channel_numbers (channel) VALUES (?)", (channel.name,))
            self._put(channel, positions)
            return True

    def replace(self, channel: StoredChannel, positions: dict[str, int]) -> None:
        """Store another text under the same name, from these positions on. The caller has closed the open execution."""
        with self._database.transaction():
            self.drop(channel.name)
            self._put(channel, positions)

    def get(self, name: str) -> StoredChannel:
        row = self._row(name)
        if row is None:
            there = ", ".join(channel.name for channel in self.all()) or "none"
            raise Unknown(f"unknown channel {name}", f"the channels are: {there}")
        return self._reader.required(row)

    def exists(self, name: str) -> bool:
        return self._row(name) is not None

    def has(self, channel: StoredChannel) -> bool:
        """Whether this exact channel is current, rather than one created since under the same name."""
        row = self._row(channel.name)
        return row is not None and self._reader.required(row) == channel

    def all(self) -> list[StoredChannel]:
        return self._reader.readable(self._rows())

    def damaged(self) -> list[str]:
        """What is wrong with the channels that cannot be read."""
        return self._reader.problems(self._rows())

    def numbers(self, name: str) -> Numbers:
        sql = "SELECT version, held, opened, committed, oldest FROM channel_numbers WHERE channel = ?"
        row = self._database.row(sql, (name,))
        return Numbers(*row) if row is not None else Numbers(0, 0, 0, 0, 1)

    def positions(self, name: str) -> dict[str, int]:
        """For each NEW dataset, the last batch that an execution was opened for."""
        rows = self._database.rows("SELECT dataset, upto FROM positions WHERE channel = ?", (name,))
        return {row["dataset"]: row["upto"] for row in rows}

    def advance(self, name: str, positions: dict[str, int]) -> None:
        values = [(name, dataset, upto) for dataset, upto in positions.items()]
        self._database.run_many("INSERT OR REPLACE INTO positions VALUES (?, ?, ?)", values)

    def readers(self, dataset: str) -> list[str]:
        """The channels that read a dataset, new or whole."""
        return [c.name for c in self.all() if dataset in (*c.new_datasets, *c.whole_datasets)]

    def drop(self, name: str) -> None:
        """The caller drops its subscriptions and executions, in the same transaction."""
        self._database.run("DELETE FROM channels WHERE name = ?", (name,))
        self._database.run("DELETE FROM positions WHERE channel = ?", (name,))

    def _put(self, channel: StoredChannel, positions: dict[str, int]) -> None:
        first = self.numbers(channel.name).opened + 1
        stored = msgspec.structs.replace(channel, created_at=time.time(), from_execution=first)
        self._database.run(
            "INSERT INTO channels VALUES (?, ?, ?, ?)",
            (stored.name, stored.text, _definition(stored), stored.created_at),
        )
        self.advance(stored.name, positions)

    def _rows(self) -> list[Row]:
        return self._database.rows("SELECT * FROM channels ORDER BY name")

    def _row(self, name: str) -> Row | None:
        return self._database.row("SELECT * FROM channels WHERE name = ?", (name,))


def _stored(row: Row) -> StoredChannel:
    return msgspec.json.decode(row["definition"], type=StoredChannel)


def _definition(channel: StoredChannel) -> str:
    """The channel as JSON, checked to read back as equal, because numbers that JSON lacks become null."""
    text = msgspec.json.encode(channel)
    if msgspec.json.decode(text, type=StoredChannel) != channel:
        raise Conflict(f"channel {channel.name} cannot be stored as it is written", "simplify it")
    return text.decode()


# --- parameters in canonical form


PARAMETERS_BYTES_MAX = 4096  # of the canonical JSON: parameters select records, they are not records themselves
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_DECIMAL = re.compile(r"DECIMAL\((\d+), ?(\d+)\)")
_TRUTH = {"true": True, "false": False}


def bound(declared: Mapping[str, str], given: Mapping[str, Any], user: str) -> dict[str, Any]:
    """The values with `user` filled in, if the channel declares it; raises `WrongParameters`."""
    if USER not in declared:
        return dict(given)
    if not user:
        problem = f"parameter {USER} is the login name, but the subscriber is not logged in"
        raise WrongParameters(problem, f"subscribe through a gateway, or give {USER} beside the parameters")
    for name, value in given.items():
        if name.lower() == USER and value != user:
            problem = f"parameter {USER} is {_shown(value)}, but the login is {_shown(user)}"
            raise WrongParameters(problem, f"leave {USER} out; the login is filled in")
    return {**{name: value for name, value in given.items() if name.lower() != USER}, USER: user}


def canonical(declared: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values under their declared names, in their declared types; raises `WrongParameters`."""
    lowered = {name.lower(): value for name, value in given.items()}
    shape = ", ".join(f"{name} {kind}" for name, kind in declared.items()) or "no parameters"
    for name in lowered:
        if name not in declared:
            raise WrongParameters(f"unknown parameter {name[:80]}", f"the channel takes {shape}")
    values = {}
    for name, kind in sorted(declared.items()):
        if lowered.get(name) is None:
            raise WrongParameters(f"parameter {name} is missing", f"the channel takes {shape}")
        values[name] = _coerced(name, kind, lowered[name])
    if len(canonical_json(values)) > PARAMETERS_BYTES_MAX:
        raise WrongParameters("the parameters are too long", f"give at most {PARAMETERS_BYTES_MAX} bytes of JSON")
    return values


def canonical_json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def subscription_id(channel: str, values: Mapping[str, Any]) -> str:
    """The same for the same canonical parameters, no matter who asks."""
    return f"{channel}-{hashlib.sha256(canonical_json(values).encode()).hexdigest()[:16]}"


def channel_of(subscription: str) -> str:
    """The channel that a subscription's id names."""
    return subscription.rpartition("-")[0]


def _coerced(name: str, kind: str, value: Any) -> Any:
    family = kind.partition("(")[0]
    try:
        return _COERCE[family](kind, value)
    except (TypeError, ValueError, OverflowError, decimal.DecimalException):
        raise WrongParameters(
            f"parameter {name} is {_shown(value)}", f"give a value of type {kind}{_EXAMPLES[family]}"
        ) from None


def _shown(value: Any) -> str:
    """For an error message. Lists and objects are not shown: they may be deep, and are wrong anyway."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return json.dumps(value, default=str)[:80]


def _string(kind: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # raises for a lone surrogate
    return value


def _boolean(kind: str, value: Any) -> bool:
    if isinstance(value, str):
        return _TRUTH[value.lower()] if value.lower() in _TRUTH else _refuse()
    return value if isinstance(value, bool) else _refuse()


def _whole(kind: str, value: Any) -> int:
    if isinstance(value, bool) or (isinstance(value, float) and not value.is_integer()):
        raise TypeError
    number, bits = int(value), _BITS[kind]
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise OverflowError
    return number


def _real(kind: str, value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    number = float(value)
    if kind == "FLOAT":
        (number,) = struct.unpack("f", struct.pack("f", number))
    if not math.isfinite(number):
        raise OverflowError
    return number + 0.0  # -0.0 becomes 0.0


def _decimal(kind: str, value: Any) -> str:
    found = _DECIMAL.fullmatch(kind)
    digits, scale = (int(found[1]), int(found[2])) if found else (10, 0)  # Spark's DECIMAL
    if isinstance(value, bool):
        raise TypeError
    with decimal.localcontext(decimal.Context(prec=digits, traps=[decimal.InvalidOperation, decimal.Inexact])):
        number = decimal.Decimal(str(value))
        if not number.is_finite():
            raise OverflowError  # quantize accepts NaN, on which Spark would fail
        return str(number.quantize(decimal.Decimal(1).scaleb(-scale)) + 0)  # -0 becomes 0


def _date(kind: str, value: Any) -> str:
    return dt.date.fromisoformat(value).isoformat()


def _timestamp(kind: str, value: Any) -> str:
    moment = dt.datetime.fromisoformat(value)
    moment = moment.replace(tzinfo=dt.UTC) if moment.tzinfo is None else moment.astimezone(dt.UTC)
    return moment.replace(tzinfo=None).isoformat(" ", "microseconds")


def _refuse() -> Any:
    raise ValueError


_COERCE: dict[str, Callable[[str, Any], Any]] = {
    "STRING": _string,
    "BOOLEAN": _boolean,
    **dict.fromkeys(_BITS, _whole),
    "FLOAT": _real,
    "DOUBLE": _real,
    "DECIMAL": _decimal,
    "DATE": _date,
    "TIMESTAMP": _timestamp,
}
_EXAMPLES = {**dict.fromkeys(_COERCE, ""), "DATE": ", as in 2026-01-31", "TIMESTAMP": ", as in 2026-01-31T12:00:00Z"}
