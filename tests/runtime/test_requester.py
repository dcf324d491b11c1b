"""A requester opens its connection again when it was lost, and listens on it again."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from nearcast.core.wire.backend import Credentials
from nearcast.errors import AuthenticationFailed, ConnectFailed
from nearcast.runtime.requester import Requester
from nearcast.runtime.servers import LocalServer

pytestmark = pytest.mark.live


def test_it_listens_again_after_a_lost_connection() -> None:
    async def scenario() -> None:
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        async with await LocalServer.start() as server:
            listener, other = Requester(server.url), Requester(server.url)
            await listener.listen(b"channel", heard.put_nowait)
            me = await listener.ask("CLIENT", "ID")
            assert isinstance(me, int)
            await other.ask("CLIENT", "KILL", "ID", me)
            async with asyncio.timeout(5):
                while await listener.ask("CLIENT", "ID") == me:
                    pass
                await other.ask("PUBLISH", b"channel", b"hello")
                assert await heard.get() == b"hello"
            await listener.close()
            await other.close()

    asyncio.run(scenario())


def test_it_listens_again_if_who_asked_gave_up_while_the_server_was_greeted() -> None:
    """As an inquiry with a time limit does, while the server stands still."""

    async def scenario() -> None:
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        async with await LocalServer.start() as server:
            listener, other = Requester(server.url), Requester(server.url)
            await listener.listen(b"channel", heard.put_nowait)
            await listener.close()
            os.kill(server.pid, signal.SIGSTOP)  # the kernel goes on taking connections for it
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await listener.ask("PING")
            os.kill(server.pid, signal.SIGCONT)
            assert await listener.ask("PING") == b"PONG"
            await other.ask("PUBLISH", b"channel", b"hello")
            async with asyncio.timeout(5):
                assert await heard.get() == b"hello"
            await listener.close()
            await other.close()

    asyncio.run(scenario())


def test_it_brings_credentials_for_a_url_without() -> None:
    async def scenario() -> None:
        async with await LocalServer.start(extra=("--requirepass", "secret")) as server:
            with pytest.raises(AuthenticationFailed, match="give the user name and password in the URL"):
                await Requester(server.url).ask("PING")
            requester = Requester(server.url, Credentials("", "secret"))
            assert await requester.ask("PING") == b"PONG"
            await requester.close()
        with pytest.raises(ConnectFailed, match="does it run"):
            await requester.ask("PING")

    asyncio.run(scenario())
