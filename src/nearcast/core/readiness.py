"""Readiness: whether a subscriber held the next placement before anybody could write there (subscriber rule 3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.core.placement import Mode
from nearcast.core.record import Record, Unreadable

if TYPE_CHECKING:
    from nearcast.core.attachment import Attachment
    from nearcast.core.backend import Denied
    from nearcast.core.inflow import Inflow


def unready(inflow: Inflow, record: Record, readers: tuple[str, ...]) -> str | None:
    """Why messages may have passed us at this switch, or None if none can have."""
    held = [inflow.attachments.get(reader) for reader in readers]
    if not all(attachment is not None and attachment.open for attachment in held):
        return "the topic moved before this subscription was attached to its new place"
    if record.forced and not _proven(inflow, record.epoch):
        return "the topic was moved by force"
    return None


def _proven(inflow: Inflow, epoch: int) -> bool:
    """Whether we held the new place before any publisher could write there, although the move was forced."""
    if inflow.placement is None or inflow.placement.mode is Mode.ALL_PUBLISHERS:
        return False  # another member than ours may have switched before we were ready
    readers = inflow.placement.readers(inflow.client.client_id)
    held = [inflow.attachments.get(reader) for reader in readers]
    return all(attachment is not None and epoch in attachment.proven for attachment in held)


def say_ready(inflow: Inflow) -> None:
    """Say it wherever the topic is held, when all of the next placement is."""
    upcoming = inflow.upcoming
    if upcoming is None:
        return
    readers = [inflow.attachments.get(reader) for reader in upcoming.readers(inflow.client.client_id)]
    if not all(reader is not None and reader.open for reader in readers):
        return
    for attachment in inflow.attachments.values():
        if attachment.say_ready(inflow.topic, upcoming.epoch):
            _prove(inflow, attachment, upcoming.epoch)


def _prove(inflow: Inflow, attachment: Attachment, epoch: int) -> None:
    """Read the record behind the readiness: still an older epoch there means the readiness ran before the fence."""
    link = attachment.link
    assert link is not None

    def read(record: Record | Unreadable | Denied | None, now_s: float) -> None:
        if attachment.link is link and isinstance(record, Record):
            if record.epoch < epoch:
                attachment.proven |= {epoch}
            inflow.record(link.broker, record, now_s)

    link.read_record(inflow.topic, inflow.client.membership, read)
