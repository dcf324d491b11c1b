"""A verification: the records of all brokers a subscriber is attached to, read once more (PROTOCOL, subscriber rule 2).

Everything needed was open before the first of these reads was sent. If they all say what was known then, no move has
slipped in between, and nothing acknowledged from now on can be missed.

It has no timer: an answer comes, however far away the server is, or its link is lost, and then the inflow begins anew.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from nearcast.core.backend import Denied
from nearcast.core.record import Unreadable
from nearcast.core.refusals import not_found

if TYPE_CHECKING:
    from nearcast.core.attachment import Attachment
    from nearcast.core.inflow import Inflow
    from nearcast.core.record import Record


class Verification:
    __slots__ = ("_held", "_inflow", "_seen", "_unread")

    def __init__(self, inflow: Inflow, held: list[Attachment]) -> None:
        self._inflow = inflow
        self._held = held
        self._unread = len(held)
        self._seen = (inflow.epoch, inflow.upcoming)

    @property
    def unchanged(self) -> bool:
        return (self._inflow.epoch, self._inflow.upcoming) == self._seen

    def start(self) -> None:
        inflow = self._inflow
        for attachment in self._held:
            if attachment.link is not None:
                attachment.link.read_record(inflow.topic, inflow.client.membership, partial(self._read, attachment))

    def _read(self, attachment: Attachment, record: Record | Unreadable | Denied | None, now_s: float) -> None:
        inflow, broker = self._inflow, attachment.broker
        if inflow.verification is not self:
            return
        if isinstance(record, (Unreadable, Denied)):
            inflow.refuse(not_found(broker, inflow.topic, record), now_s)
            return
        self._unread -= 1
        if record is not None:
            inflow.record(broker, record, now_s)
        elif inflow.outlived(attachment):
            inflow.progress(now_s)
        if not self._unread:
            inflow.verified(self, now_s)
