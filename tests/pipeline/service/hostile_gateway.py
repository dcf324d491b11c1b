"""What no client of ours sends to a gateway: frames, requests and bytes, drawn from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from hostile import NUMBERS, TEXTS, Request, nested, quoted

_FRAMES: tuple[dict[str, Any], ...] = (
    {"type": "subscribe", "ref": 1, "channel": "calls_of", "parameters": {"who": "eve"}},
    {"type": "subscribe", "ref": 1, "channel": "nowhere", "parameters": {}},
    {"type": "unsubscribe", "ref": 2, "subscription": "calls_of-0123456789abcdef"},
    {"type": "ack", "subscription": "calls_of-0123456789abcdef", "execution": 1},
    {"type": "publish", "ref": 3, "topic": "talk", "payload": "hello"},
    {"type": "publish", "ref": 3, "topic": "talk", "payload": "/w==", "encoding": "base64"},
    {"type": "subscribe_topic", "ref": 4, "topic": "talk"},
    {"type": "unsubscribe_topic", "ref": 5, "topic": "talk"},
    {"type": "ping"},
    {"type": "login", "user": "eve", "token": "1.aa", "cursors": {"calls_of-0123456789abcdef": 1}},
    {"type": "welcome", "broker": "b1", "subscriptions": []},
    {"type": "logout"},
)
_RAW = (b"", b"{", b"\xff\xfe\x00", b"[" * 5000, b"nul", b"{}", b"[]", b"NaN", b'{"type":', b'"\\ud800"', b"\x00" * 50)
_PATHS = (
    *("/register", "/session", "/broker", "/health", "/ws", "/", "/docs", "/session/x/frames", "/session//frames"),
    *("/session/{live}/frames", "/session/{live}/frames?after=-1&wait_s=-1"),
    *("/session/{live}/frames?after=1e300&wait_s=0", "/session/{live}/frames?after=nan", "/broker?user=eve&lat=1e999"),
    "/broker?user=eve&lat=91&lon=-181",
)
_BODIES: tuple[Any, ...] = (
    {"user": "eve"},
    {"user": "eve", "token": "1.aa", "cursors": {"x": 1}},
    {"user": "eve", "token": "1.aa", "proof": "x"},
    *_FRAMES,
    list(_FRAMES[:4]),
)


def frames(seed: int) -> Iterator[bytes]:
    """Endless; the same for the same seed. Most have the form of a frame, with something odd in it."""
    dice = random.Random(seed)
    while True:
        draw = dice.random()
        if draw < 0.1:
            yield dice.choice(_RAW)
        elif draw < 0.2:
            yield _flipped(dice, json.dumps(dice.choice(_FRAMES)).encode())
        elif draw < 0.25:
            depth = dice.choice([19, 21, 100, 900, 960, 980, 1500])
            yield (
                b'{"type":"subscribe","ref":1,"channel":"calls_of","parameters":'
                + b'{"a":' * depth
                + b"1"
                + (b"}" * (depth + 1))
            )
        else:
            yield json.dumps(_changed(dice, dice.choice(_FRAMES))).encode()


def gateway_requests(seed: int, live: str) -> Iterator[Request]:
    """Endless. `live`: the id of a long-poll session."""
    dice = random.Random(seed)
    while True:
        path = dice.choice(_PATHS).replace("{live}", live)
        if dice.random() < 0.2:
            path += ("&" if "?" in path else "?") + f"user={quoted(dice.choice(TEXTS))}&wait_s=0"
        elif path.endswith("frames"):
            path += "?wait_s=0"
        headers = {"origin": dice.choice(["null", "http://[", "https://x", "\x7f"])} if dice.random() < 0.1 else {}
        if dice.random() < 0.1:
            headers["x-forwarded-for"] = dice.choice(["::1, x", "1.2.3.4", ",,,", "x" * 1000])
        method = dice.choice(["GET", "POST", "POST", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE"])
        yield Request(method, path, headers, _content(dice) if method == "POST" else b"")


def raw_bytes(seed: int) -> Iterator[bytes]:
    """Endless: what stands on a connection where a request should."""
    dice = random.Random(seed)
    upgrade = (
        b"GET /ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    )
    whole = b"POST /register HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\n" + b'{"user":"eve"}'
    chunked = b"POST /session HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nZZ\r\n"
    while True:
        text = dice.choice([upgrade, whole, chunked, whole * 3])
        if text is upgrade:
            text += dice.randbytes(dice.randrange(40))
        yield _flipped(dice, text) if dice.random() < 0.8 else dice.randbytes(200)


def _content(dice: random.Random) -> bytes:
    draw = dice.random()
    if draw < 0.15:
        return dice.choice(_RAW)
    if draw < 0.2:
        return b"x" * 100_000
    if draw < 0.3:
        return b'{"user":"eve","token":' + b"[" * 990 + b"]" * 990 + b"}"
    body = dice.choice(_BODIES)
    return json.dumps(_changed(dice, body) if isinstance(body, dict) else body).encode()


def _changed(dice: random.Random, frame: dict[str, Any]) -> dict[str, Any]:
    """With one or two odd values, or a field too many or too few."""
    changed = dict(frame)
    for _ in range(dice.choice([1, 1, 2])):
        name = dice.choice(list(changed) or ["type"])
        draw = dice.random()
        if draw < 0.1:
            changed.pop(name, None)
        elif draw < 0.2:
            changed[dice.choice(TEXTS)] = _odd(dice)
        elif name == "parameters":
            changed[name] = {dice.choice(["who", dice.choice(TEXTS)]): _odd(dice)}
        elif name != "type" or dice.random() < 0.1:
            changed[name] = _odd(dice)
    return changed


def _odd(dice: random.Random) -> Any:
    return dice.choice([dice.choice(TEXTS), dice.choice(NUMBERS), None, True, nested(dice), [1], "talk", "eve"])


def _flipped(dice: random.Random, text: bytes) -> bytes:
    flipped = bytearray(text)
    for _ in range(dice.randrange(1, 4)):
        flipped[dice.randrange(len(flipped))] = dice.randrange(256)
    return bytes(flipped)
