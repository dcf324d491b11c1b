"""`nearcast users`: the users of gateways, their tokens, and the keys that sign them."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from nearcast.cli.shared import DEFAULT_URL, Output, OutputOption, Url, print_json, run, say, show

if TYPE_CHECKING:
    from nearcast.gateway.users import User, Users


app = typer.Typer(help="Manage the users of gateways and their tokens.", no_args_is_help=True)

COLUMNS = ("user", "home", "subscriptions", "days not seen")
Name = Annotated[str, typer.Argument(metavar="USER")]


@contextlib.asynccontextmanager
async def _users(url: str) -> AsyncIterator[Users]:
    """The users in the cluster's store, which is reached with the credentials of the given URL."""
    from nearcast.gateway.directory import StoreConnection
    from nearcast.gateway.users import Users
    from nearcast.runtime.console import find_store
    from nearcast.runtime.driver import parse_url

    _, credentials = parse_url(url)
    store = StoreConnection(await find_store(url), credentials)
    try:
        yield Users(store)
    finally:
        await store.close()


@app.command("list")
def list_users(url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Show all registered users.

    It shows the broker where each last was, and how many subscriptions it has.

    Days not seen are counted only while gateways run.

    Example: nearcast users list --url redis://store.example.com:6379
    """
    users = run(lambda: _list(url))
    rows = [
        (user.name, user.home or "-", str(user.subscriptions), str(user.unseen_hours // 24 or "-")) for user in users
    ]
    show(output, users, COLUMNS, rows, f"{len(users)} users")


async def _list(url: str) -> list[User]:
    async with _users(url) as users:
        return sorted([user async for user in users.all()], key=lambda user: user.name)


@app.command("add")
def add(user: Name, url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Register a user and print its token.

    This works whatever the gateways' --register says.

    Example: nearcast users add ann
    """
    _print_token(user, run(lambda: _add(url, user)), output)


async def _add(url: str, user: str) -> str:
    async with _users(url) as users:
        return await users.register(user)


@app.command("reset")
def reset(user: Name, url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Print a new token for a user. All earlier tokens become invalid, and their sessions end within seconds.

    Subscriptions and undelivered results are kept.

    Example: nearcast users reset ann
    """
    _print_token(user, run(lambda: _reset(url, user)), output)


async def _reset(url: str, user: str) -> str:
    from nearcast.core.model.tokens import checked_user

    checked_user(user)
    async with _users(url) as users:
        return await users.reset(user)


@app.command("remove")
def remove(user: Name, url: Url = DEFAULT_URL) -> None:
    """Remove a user and all that belongs to it.

    That is tokens, sessions, subscriptions and undelivered results. The name is then free.

    Example: nearcast users remove ann
    """
    run(lambda: _remove(url, user))
    say(f"user {user} was removed")


async def _remove(url: str, user: str) -> None:
    from nearcast.core.model.tokens import checked_user

    checked_user(user)
    async with _users(url) as users:
        await users.remove(user)


@app.command("rotate-key")
def rotate_key(
    now: Annotated[
        bool,
        typer.Option("--now", help="Invalidate all earlier tokens at once; their sessions end within seconds."),
    ] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Sign tokens with a new key from now on. Earlier tokens stay valid until they expire, unless --now is given.

    Example: nearcast users rotate-key
    """
    number = run(lambda: _rotate(url, now))
    earlier = "are no longer valid" if now else "stay valid until they expire"
    say(f"key {number} signs tokens from now on; those signed by earlier keys {earlier}")


async def _rotate(url: str, now: bool) -> int:
    async with _users(url) as users:
        return await users.rotate(at_once=now)


def _print_token(user: str, token: str, output: Output) -> None:
    if output is Output.JSON:
        print_json({"user": user, "token": token})
    else:
        print(token, flush=True)
