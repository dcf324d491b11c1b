"""Tokens: who a subscriber is, signed with the cluster's key, so that any gateway can tell without asking.

token = EXPIRY "." HMAC-SHA256(key, EXPIRY NUL user), the expiry in seconds since the Unix epoch
"""

from __future__ import annotations

import hashlib
import hmac
import re

from nearcast.errors import UsageError

_USER = re.compile(r"[^\s:\x00-\x1f\x7f]{1,128}")


def checked_user(user: str) -> str:
    """A user's name stands in keys of the store, so it has rules."""
    if not _USER.fullmatch(user):
        raise UsageError(f"bad user name {user[:40]!r}: use 1 to 128 characters without spaces and colons")
    return user


def issue(key: bytes, user: str, expires_s: int) -> str:
    return f"{expires_s}.{_signature(key, user, expires_s)}"


def problem_with(token: str, key: bytes, user: str, now_s: float) -> str:
    """What is wrong with a token; empty if it is good."""
    expiry, _, signature = token.partition(".")
    if not (expiry.isascii() and expiry.isdigit() and len(expiry) <= 12 and signature.isascii()):
        return "not a token: register to get one"
    # The signature first: the expiry of a forged token tells nothing.
    if not hmac.compare_digest(signature, _signature(key, user, int(expiry))):
        return "this token is not for this user: register to get one"
    if now_s >= int(expiry):
        return "this token has expired: registering with a good one gives a new one, so do that in time"
    return ""


def _signature(key: bytes, user: str, expires_s: int) -> str:
    return hmac.new(key, f"{expires_s}\0{user}".encode(), hashlib.sha256).hexdigest()
