"""The parameters of a subscription in their canonical form: equal ones of all brokers become one backend subscription.

Each value is coerced to the type that the channel declares. Text that reads as the type is taken too, because a phone
may have its parameters from a form. Canonical values are JSON: dates, times and decimals are text.

The parameter `user` is not the subscriber's to choose: it is the name that she logged in with, as her gateway says.
"""

from __future__ import annotations

import datetime as dt
import decimal
import hashlib
import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

from nearcast.pipeline.catalog.refusals import WrongParameters
from nearcast.pipeline.channels.language import USER

PARAMETERS_BYTES_MAX = 4096  # of the canonical JSON: parameters choose records, they are not records
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_DECIMAL = re.compile(r"DECIMAL\((\d+), ?(\d+)\)")
_TRUTH = {"true": True, "false": False}


def bound(declared: Mapping[str, str], given: Mapping[str, Any], user: str) -> dict[str, Any]:
    """The values with that of `user` filled in, where the channel declares it; raises `WrongParameters`."""
    if USER not in declared:
        return dict(given)
    if not user:
        problem = f"parameter {USER} is the name of who is logged in, and nobody is"
        raise WrongParameters(problem, f"subscribe through a gateway, or name the {USER} beside the parameters")
    for name, value in given.items():
        if name.lower() == USER and value != user:
            problem = f"parameter {USER} is {_shown(value)}, and the login is {_shown(user)}"
            raise WrongParameters(problem, f"leave {USER} out: it is filled in")
    return {**{name: value for name, value in given.items() if name.lower() != USER}, USER: user}


def canonical(declared: Mapping[str, str], given: Mapping[str, Any]) -> dict[str, Any]:
    """The values under their declared names, in their declared types; raises `WrongParameters`."""
    lowered = {name.lower(): value for name, value in given.items()}
    shape = ", ".join(f"{name} {kind}" for name, kind in declared.items()) or "no parameters"
    for name in lowered:
        if name not in declared:
            raise WrongParameters(f"unknown parameter {name[:80]}", f"the channel has {shape}")
    values = {}
    for name, kind in sorted(declared.items()):
        if lowered.get(name) is None:
            raise WrongParameters(f"parameter {name} is missing", f"the channel has {shape}")
        values[name] = _coerced(name, kind, lowered[name])
    if len(canonical_json(values)) > PARAMETERS_BYTES_MAX:
        raise WrongParameters("the parameters are too long", f"give at most {PARAMETERS_BYTES_MAX} bytes of JSON")
    return values


def canonical_json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def subscription_id(channel: str, values: Mapping[str, Any]) -> str:
    """The same for the same canonical parameters, whoever asks."""
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
    """For a message. What stands in a list or an object is not looked at: it may be deep, and is wrong anyway."""
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    return json.dumps(value, default=str)[:80]


def _string(kind: str, value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # a lone surrogate is no text
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
            raise OverflowError  # quantize lets NaN pass, and Spark would fail over it
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
_EXAMPLES = {**dict.fromkeys(_COERCE, ""), "DATE": ", as 2026-01-31", "TIMESTAMP": ", as 2026-01-31T12:00:00Z"}
