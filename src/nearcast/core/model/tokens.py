"""Tokens: prove who a subscriber is, signed with a key of the cluster.

token = EXPIRY "." KEY "." REGISTRATION "." HMAC-SHA256(secret, EXPIRY NUL KEY NUL REGISTRATION NUL user)

EXPIRY is in seconds since the Unix epoch. KEY is the number of the key that signed it: keys change, and a token stays
valid until its key is removed. REGISTRATION is what the store has for the user: a token of an earlier registration of
the same name is no longer valid.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import unicodedata
from collections.abc import Mapping

import msgspec

from nearcast.errors import UsageError

LIFE_S = 90 * 86400.0

_USER = re.compile(r"[^\s:\x00-\x1f\x7f]{1,128}")
_TOKEN = re.compile(r"([0-9]{1,12})\.([0-9]{1,9})\.([0-9a-f]{1,64})\.([0-9a-f]{64})", re.ASCII)

NOT_A_TOKEN = "not a token: register to get one"
ANOTHER_USER = "this token is not for this user: register to get one"
KEY_GONE = "the key of this token was removed: ask the operator for a new token"
EXPIRED = "this token has expired: ask the operator for a new one (a client that connects in time renews it by itself)"
ENDED = "this token is no longer valid: the user was reset or removed, ask the operator for a new one"


class Key(msgspec.Struct, frozen=True):
    """A key that signs tokens; the newest is used. `until_s`: when an earlier one ends, 0 for the newest."""

    number: int
    secret: bytes
    until_s: float = 0.0

    def is_good(self, now_s: float) -> bool:
        return not self.until_s or now_s < self.until_s


class Token(msgspec.Struct, frozen=True):
    """What a token says, before it has been verified."""

    expires_s: int
    key: int
    registration: str
    signature: str

    @classmethod
    def read(cls, text: str) -> Token | None:
        found = _TOKEN.fullmatch(text)
        return cls(int(found[1]), int(found[2]), found[3], found[4]) if found else None

    def problem(self, keys: Mapping[int, Key], user: str, registration: str, now_s: float) -> str:
        """What is wrong with it; empty if it is good. `registration`: the user's current one."""
        key = keys.get(self.key)
        if key is None or not key.is_good(now_s):
            return KEY_GONE
        # The signature is checked first: the content of a forged token means nothing.
        if not hmac.compare_digest(self.signature, _signature(key, user, self.registration, self.expires_s)):
            return ANOTHER_USER
        if now_s >= self.expires_s:
            return EXPIRED
        return "" if self.registration == registration else ENDED


def checked_user(user: str) -> str:
    """A user's name is part of keys in the store, so it has rules."""
    if not _USER.fullmatch(user):
        raise UsageError(f"bad user name {user[:40]!r}: use 1 to 128 characters without spaces and colons")
    return user


def checked_new_user(user: str) -> str:
    """A newly registered name must not look like another one, so that users cannot be mistaken for each other."""
    checked_user(user)
    if not user.isprintable():
        raise UsageError(f"bad user name {ascii(user)[:40]}: use visible characters")
    if not unicodedata.is_normalized("NFC", user):
        raise UsageError(f"bad user name {ascii(user)[:40]}: write it in the normal form NFC")
    return user


def issue(key: Key, user: str, registration: str, expires_s: int) -> str:
    return f"{expires_s}.{key.number}.{registration}.{_signature(key, user, registration, expires_s)}"


def _signature(key: Key, user: str, registration: str, expires_s: int) -> str:
    signed = f"{expires_s}\0{key.number}\0{registration}\0{user}"
    return hmac.new(key.secret, signed.encode(), hashlib.sha256).hexdigest()
