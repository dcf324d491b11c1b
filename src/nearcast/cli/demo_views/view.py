"""Shows an act while it runs: a live screen on a terminal, a few lines every few seconds elsewhere."""

from __future__ import annotations

import asyncio
from typing import Any

from rich.console import Console
from rich.live import Live

from nearcast.cli.demo_views.look import Look, event_line
from nearcast.cli.shared import say
from nearcast.demo.act import Act

DRAW_S = 0.5
EVENTS_S, LINES_S = 1.0, 5.0  # how often events, and the state, are printed where there is no screen


class View:
    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._note = ""
        self._drawing = False

    def tell(self, step: str) -> None:
        """Show a step of the start or of the end."""
        self._note = step
        if not self._drawing:
            say(step)

    async def show(self, act: Act[Any], look: Look) -> None:
        """Runs until cancelled."""
        await act.begun.wait()
        self._note = ""
        if self._console.is_terminal:
            await self._draw(look)
        else:
            await self._print(act, look)

    async def _draw(self, look: Look) -> None:
        self._drawing = True
        with Live(console=self._console, auto_refresh=False) as live:
            try:
                while True:
                    live.update(look.screen(self._console.size, self._note), refresh=True)
                    await asyncio.sleep(DRAW_S)
            finally:
                self._note, self._drawing = "", False
                live.update(look.screen(self._console.size), refresh=True)

    async def _print(self, act: Act[Any], look: Look) -> None:
        for line in look.explanation:
            print(line, flush=True)
        shown, due_s = 0, LINES_S
        while True:
            await asyncio.sleep(EVENTS_S)
            fresh, shown = act.events_since(shown), act.happened
            lines = [event_line(event).plain for event in fresh if event.kind in look.printed]
            if act.elapsed_s >= due_s:
                due_s += LINES_S
                lines += look.status()
            for line in lines:
                print(line, flush=True)
