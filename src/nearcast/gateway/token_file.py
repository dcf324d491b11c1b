"""The file in which a client keeps the tokens it was given, so that a name is its own at the next start too.

One JSON object, {gateway's URL: {user: token}}, that only its owner may read. Programs that use it at the same time
lock it, and a new version replaces the old one as a whole.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

Tokens = dict[str, dict[str, str]]


def usual_path() -> Path:
    """In the user's folder for configuration, as the XDG base directory specification says."""
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "nearcast" / "tokens.json"


class TokenFile:
    """OSError says that it cannot be read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def get(self, url: str, user: str) -> str:
        """Empty if there is none."""
        return self._read().get(url, {}).get(user, "")

    def put(self, url: str, user: str, token: str) -> None:
        self._change(lambda tokens: tokens.setdefault(url, {}).update({user: token}))

    def forget(self, url: str, user: str) -> None:
        self._change(lambda tokens: tokens.get(url, {}).pop(user, None))

    def _read(self) -> Tokens:
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=Tokens)
        except FileNotFoundError:
            return {}
        except (msgspec.DecodeError, UnicodeError) as error:
            raise OSError(f"{self.path} is not a file of tokens ({error}): move it away") from None

    def _change(self, change: Callable[[Tokens], object]) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._locked():
            tokens = self._read()
            change(tokens)
            fresh = self.path.with_suffix(".new")
            fresh.unlink(missing_ok=True)
            with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(msgspec.json.encode(tokens))
            fresh.replace(self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with open(os.open(self.path.with_suffix(".lock"), os.O_WRONLY | os.O_CREAT, 0o600), "wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
