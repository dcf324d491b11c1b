"""Who waits to be let in does nothing until something happens: thousands may wait in one program."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from nearcast.errors import ConnectFailed
from nearcast.runtime.client import Client


def test_a_client_that_waits_to_be_let_in_sets_no_timers_but_its_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> int:
        loop: Any = asyncio.get_running_loop()
        silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
        port = silent.sockets[0].getsockname()[1]
        timers = 0
        call_at = loop.call_at

        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal timers
            timers += 1
            return call_at(*arguments, **options)

        monkeypatch.setattr(loop, "call_at", counted)
        with pytest.raises(ConnectFailed):
            await Client(f"redis://127.0.0.1:{port}", bootstrap_s=1.0)
        silent.close()
        return timers

    assert 0 < asyncio.run(scenario()) < 30
