"""A client's passport: the token it logs in with, and the file in which it keeps its tokens."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from nearcast.core.model.tokens import LIFE_S, Token
from nearcast.errors import NearcastError
from nearcast.subscriber import transport as carriers

Tokens = dict[str, dict[str, str]]


def usual_path() -> Path:
    """In the user's configuration folder, according to the XDG Base Directory Specification."""
    folder = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(folder).expanduser() / "nearcast" / "tokens.json"


# --- the file of tokens


class TokenFile:
    """The file in which a client keeps its tokens, so that it still owns its name at the next start.

    It is one JSON object, {gateway's URL: {user: token}}, that only its owner may read. Programs that use it at the
    same time lock it, and a new version replaces the old one as a whole. Raises OSError if reading or writing fails.
    """

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
            raise OSError(f"{self.path} is not a token file ({error}): move it away") from None

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


# --- the passport


T = TypeVar("T")

log = logging.getLogger("nearcast.subscriber")


class Passport:
    """The token of one user at the gateways of one cluster, of which `url` is one.

    It is given by the program, kept from last time, or obtained by registering. A kept token is renewed when half of
    its life is over. One that is refused, because it is too old or belongs to another cluster, is forgotten, and the
    user is registered again if the name is free. `kept_in`: see `Subscriber.connect`.
    """

    def __init__(
        self, url: str, user: str, token: str, kept_in: str | os.PathLike[str] | None, secret: str = ""
    ) -> None:
        self.url = url
        self.user = user
        self.token = token
        self._secret = secret
        self._is_given = bool(token)
        self._file = TokenFile(Path(kept_in) if kept_in else usual_path()) if kept_in is not None else None

    async def obtain(self) -> None:
        """Get a token. Refused: the name is taken."""
        if self._is_given:
            return
        self.token = await self._kept()
        if not self.token:
            await self._register()
        elif _is_old(self.token):
            try:
                await self._register(self.token)
            except NearcastError as error:  # the token we have may still be valid
                log.info("the token of %s was not renewed: %s", self.user, error)

    async def replace(self) -> bool:
        """The token was refused: get another, unless the program gave it. Refused: the name is taken."""
        if self._is_given:
            return False
        log.warning("the token kept for %s at %s is no longer valid: registering again", self.user, self.url)
        if self._file is not None:
            await self._use_file(self._file.forget, self.url, self.user)
        await self._register()
        self._is_given = True  # once is enough
        return True

    async def _register(self, token: str = "") -> None:
        self.token = await carriers.register(self.url, self.user, token, self._secret)
        if self._file is not None:
            await self._use_file(self._file.put, self.url, self.user, self.token)

    async def _kept(self) -> str:
        if self._file is None:
            return ""
        return await self._use_file(self._file.get, self.url, self.user) or ""

    async def _use_file(self, act: Callable[..., T], *arguments: str) -> T | None:
        try:
            return await asyncio.to_thread(act, *arguments)
        except OSError as error:
            log.warning("tokens cannot be kept (%s): choose another file with tokens=..., or give token=...", error)
            return None


def _is_old(token: str) -> bool:
    read = Token.read(token)
    return read is not None and read.expires_s - time.time() < LIFE_S / 2
