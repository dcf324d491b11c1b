"""Requests that nobody sends by mistake: drawn from a seed, for every route that the API describes."""

from __future__ import annotations

import json
import random
import urllib.parse
from collections.abc import Iterator
from typing import Any, NamedTuple

CHANNEL = "CREATE CHANNEL {}(k STRING) PERIOD 10 SECONDS AS SELECT id FROM NEW reports WHERE kind = :k"

TEXTS = (
    *(
        "",
        " ",
        "no name",
        "../../etc/passwd",
        ".",
        "..",
        "%",
        "*",
        "x" * 300,
        "x" * 5000,
        "null",
        "-1",
        "1e999",
        "nc:x",
    ),
    *(
        "a\x00b",
        "\x00",
        "\ud800",
        "ab\udfffcd",
        "\U0001f600" * 40,
        "ä" * 200,
        "\n\r\t",
        "NaN",
        "Infinity",
        "emergency.*",
    ),
    *(
        "'; DROP TABLE channels; --",
        "`",
        '"',
        "\\",
        "{}",
        "[]",
        "id INT",
        "id INT, id INT",
        "id",
        "x NONSENSE",
        ", " * 50,
    ),
    *("a STRUCT<b: ARRAY<MAP<STRING, INT>>>", "id INT NOT NULL DEFAULT 5", "id DECIMAL(99999999999999999999, 2)"),
    *("ARRAY<" * 200, "id " + "ARRAY<" * 200 + "INT" + ">" * 200),
)
NUMBERS = (0, 1, -1, 2**31, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308)
_CHANNELS = (
    *(CHANNEL.format("c1"), CHANNEL.format("x" * 300), CHANNEL.format("by_kind"), "CREATE CHANNEL", "AS", ""),
    CHANNEL.format("c2").partition("SELECT")[0],
    CHANNEL.format("c3").replace("10", "9" * 400),
    CHANNEL.format("c4") + " AND 1 = 1" * 1000,
    CHANNEL.format("c5") + " AND " + "(" * 100 + "1 = 1" + ")" * 100,
    CHANNEL.format("c6") + " AND " + "(" * 5000 + "1 = 1" + ")" * 5000,
    CHANNEL.format("c7") + " OR NOT" * 2000 + " true",
    CHANNEL.format("c8").replace("STRING", "DECIMAL(999, 999)"),
    CHANNEL.format("c9").replace("k STRING", ", ".join(f"k{n} INT" for n in range(2000))),
    CHANNEL.format("c10").replace("id", "CASE WHEN kind = 'a' THEN " * 300 + "1" + " END" * 300),
    CHANNEL.format("c11").replace("reports", "(SELECT * FROM " * 200 + "reports" + ")" * 200),
    CHANNEL.format("c12").replace("id", "'\ud800'"),
    CHANNEL.format("c13").replace("id", "'\x00' AS z"),
    CHANNEL.format("c14") + "/*",
    CHANNEL.format("c15").replace("kind", "`" + "k" * 500 + "`"),
)


_KNOWN = {
    "broker": "b1",
    "channel": "by_kind",
    "execution": "1",
    "subscription": "by_kind-0123456789abcdef",
    "feed": "reports",
    "dataset": "reports",
    "limit": "10",
}


class Request(NamedTuple):
    method: str
    url: str
    headers: dict[str, str]
    content: bytes


def requests(seed: int, openapi: dict[str, Any]) -> Iterator[Request]:
    """Endless; the same for the same seed."""
    dice = random.Random(seed)
    operations = [
        (method.upper(), path, operation)
        for path, methods in openapi["paths"].items()
        for method, operation in methods.items()
    ]
    while True:
        yield _request(dice, openapi, *dice.choice(operations))


def _request(
    dice: random.Random, openapi: dict[str, Any], method: str, path: str, operation: dict[str, Any]
) -> Request:
    query = {}
    for parameter in operation.get("parameters", ()):
        if parameter["in"] == "path":
            name = "" if method == "DELETE" else parameter["name"]  # what is there stays, for the others
            path = path.replace("{" + parameter["name"] + "}", quoted(_word(dice, name)))
        elif dice.random() < 0.7:
            query[parameter["name"]] = _word(dice, parameter["name"])
    if "wait_s" in query:
        query["wait_s"] = dice.choice(["0", "-1", "nan", "inf", "x"])
    elif path.endswith("/notifications"):
        query["wait_s"] = "0"
    text = "&".join(f"{name}={quoted(value)}" for name, value in query.items())
    content, kind = _body(dice, openapi, operation) if "requestBody" in operation else (b"", "")
    headers = {"content-type": kind} if kind else {}
    return Request(method, f"{path}?{text}" if text else path, headers, content)


def _word(dice: random.Random, name: str) -> str:
    if name in _KNOWN and dice.random() < 0.4:
        return _KNOWN[name]
    return dice.choice(TEXTS) if dice.random() < 0.7 else str(dice.choice(NUMBERS))


def quoted(word: str) -> str:
    return urllib.parse.quote(word.encode("utf-8", "surrogatepass"), safe="") or "-"


def _body(dice: random.Random, openapi: dict[str, Any], operation: dict[str, Any]) -> tuple[bytes, str]:
    kinds = list(operation["requestBody"]["content"])
    kind = dice.choice([*kinds, *kinds, "text/plain", "", "application/x-www-form-urlencoded", "multipart/form-data"])
    schema = operation["requestBody"]["content"].get("application/json", {}).get("schema", {})
    draw = dice.random()
    if draw < 0.1:
        return dice.choice([b"", b"{", b"\xff\xfe\x00", b"[" * 5000, b'"' * 3, b"nul", b"{}", b"[]", b"NaN"]), kind
    if draw < 0.2:
        depth = dice.choice([30, 500, 900, 1500])
        return b'{"x":' * depth + b"1" + b"}" * depth, kind
    return json.dumps(_value(dice, openapi, schema)).encode(), kind


def _value(dice: random.Random, openapi: dict[str, Any], schema: dict[str, Any], name: str = "") -> Any:
    """Often of the right form, with odd values in it."""
    if "$ref" in schema:
        schema = openapi["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if dice.random() < 0.1:
        return dice.choice([None, [], {}, True, dice.choice(NUMBERS), dice.choice(TEXTS), nested(dice)])
    if schema.get("type") == "object" and "properties" in schema:
        parts = schema["properties"].items()
        made = {key: _value(dice, openapi, part, key) for key, part in parts if dice.random() < 0.95}
        return made | ({dice.choice(TEXTS): 1} if dice.random() < 0.1 else {})
    if schema.get("type") == "object":
        return {dice.choice(["kind", "k", "KIND", dice.choice(TEXTS)]): _odd(dice) for _ in range(dice.randrange(3))}
    if schema.get("type") == "array":
        return [_value(dice, openapi, schema["items"], name) for _ in range(dice.randrange(4))]
    if schema.get("type") == "integer":
        return dice.choice(NUMBERS)
    if name == "text":
        return dice.choice(_CHANNELS)
    return dice.choice(TEXTS) if dice.random() < 0.6 else _KNOWN.get(name, "reports")


def _odd(dice: random.Random) -> Any:
    return dice.choice([dice.choice(TEXTS), dice.choice(NUMBERS), None, True, nested(dice), [1], "fire"])


def nested(dice: random.Random) -> Any:
    found: Any = 1
    for _ in range(dice.choice([5, 30, 400])):
        found = {"a": found} if dice.random() < 0.5 else [found]
    return found
