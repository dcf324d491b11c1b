"""A reception: what has come of one topic to one subscriber, put in order, with its holes asked for, and counted.

It begins with the first message and ends when its publishers are forgotten: of very many topics most are silent, and
cost next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.core.counters import ReceiveMeter
from nearcast.core.lines import Lines
from nearcast.core.repairs import Repairs

if TYPE_CHECKING:
    from nearcast.core.backend import ClientLink
    from nearcast.core.inflow import Inflow
    from nearcast.core.message import Event


class Reception:
    __slots__ = ("foreign", "lines", "meter", "repairs")

    def __init__(self, inflow: Inflow) -> None:
        client = inflow.client
        self.lines = Lines(inflow.name, inflow, client.timing, client.limits)
        self.repairs = Repairs(client, inflow.topic, self.lines)
        self.meter = ReceiveMeter()
        self.foreign = False  # whether there were messages without our envelope in what was taken last

    @property
    def unsettled(self) -> bool:
        """Whether frames are held, holes are open or repairs are under way."""
        return self.lines.unsettled or self.repairs.pending

    def ask_for_holes(self, now_s: float) -> None:
        lines = self.lines
        if lines.wanted:
            wanted, lines.wanted = lines.wanted, {}
            self.repairs.ask(wanted, now_s)

    def forget_silent(self) -> bool:
        """Forget publishers that were silent since the last call. Returns whether nothing is left to know."""
        self.lines.forget_silent(self.repairs.asked)
        return not self.lines.last and not self.unsettled

    def take(self, payload_bytes: int) -> list[Event]:
        """What is to be handed over."""
        events = self.lines.out
        if events:
            self.lines.out = []
            self.foreign, self.lines.foreign = self.lines.foreign, False
            self.meter.count(events, payload_bytes)
        return events


def route(inflow: Inflow, publisher: int) -> list[ClientLink]:
    """The link on which a publisher can be asked: to a server it writes to. None before all answers can come."""
    if inflow.placement is None:
        return []
    held = [inflow.attachments.get(reader) for reader in inflow.placement.readers(inflow.client.client_id)]
    if not all(attachment is not None and attachment.open for attachment in held):
        return []
    writers = inflow.placement.writers(publisher)
    links = [held.link for held in held if held is not None and held.link is not None and held.broker in writers]
    return links[:1]
