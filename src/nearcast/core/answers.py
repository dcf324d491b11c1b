"""Answers: what a publisher sends to subscribers that miss something of it (PROTOCOL, publisher rule 10).

Many subscribers may have lost the same server and ask for the whole ring, all at once. They are answered in turns, a
slice each, and all of them together at a bounded pace: what is published meanwhile must not wait behind repairs. To ask
again while the answer is under way changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nearcast.core.names import inbox_channel
from nearcast.core.pace import Pace
from nearcast.core.wire import HEADER, MARK, encode_repair

if TYPE_CHECKING:
    from nearcast.core.backend import ClientLink
    from nearcast.core.client import Client
    from nearcast.core.outflow import Outflow

BYTES_PER_S = 8 << 20  # of all answers of one client
BURST_BYTES = 1 << 20
SLICE_BYTES = 64 << 10  # of one answer, before it is the turn of the next
WAITING_MAX = 1000  # answers; who is not let in asks again


class _Answer:
    __slots__ = ("link", "next", "outflow")

    def __init__(self, outflow: Outflow, link: ClientLink, start: int) -> None:
        self.outflow = outflow
        self.link = link
        self.next = start  # number of the first message not sent yet


class Answers:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: dict[tuple[bytes, int], _Answer] = {}  # (topic, who asks)
        self._pace = Pace(BYTES_PER_S, BURST_BYTES)
        self.turned_away = 0

    def ask(self, outflow: Outflow, link: ClientLink, asker: int, have: int, now_s: float) -> None:
        """A subscriber has so much of ours, and wants the rest."""
        key = (outflow.topic, asker)
        under_way = self._waiting.get(key)
        if under_way is not None and under_way.link is link:
            return
        if under_way is None and len(self._waiting) >= WAITING_MAX:
            self.turned_away += 1
            return
        self._waiting[key] = _Answer(outflow, link, have + 1)
        self._client.attend(self)
        self._serve(now_s)

    def serves(self, outflow: Outflow) -> bool:
        """Whether somebody is being sent what it missed of these."""
        return any(answer.outflow is outflow for answer in self._waiting.values())

    def tick(self, now_s: float) -> bool:
        """Returns whether it needs attention again."""
        self._serve(now_s)
        return bool(self._waiting)

    def _serve(self, now_s: float) -> None:
        while self._waiting and self._pace.room(now_s) > 0:
            key = next(iter(self._waiting))
            answer = self._waiting.pop(key)
            if self._client.links.up(answer.link.broker) is not answer.link:
                continue  # the asker had its connection to the same server, and asks again
            if not self._send_slice(answer, *key):
                self._waiting[key] = answer

    def _send_slice(self, answer: _Answer, topic: bytes, asker: int) -> bool:
        """Returns whether the answer is complete."""
        outflow, link, inbox = answer.outflow, answer.link, inbox_channel(asker)
        spent = 0
        for sequence, payload, time_ns in outflow.kept(answer.next):
            if spent >= SLICE_BYTES:
                answer.next = sequence
                self._pace.spend(spent)
                return False
            header = HEADER.pack(
                outflow.packing.word(sequence, payload), outflow.epoch, self._client.client_id, sequence, time_ns
            )
            spent += self._tell(link, inbox, topic, header + (payload or b""))
        mark = HEADER.pack(MARK, outflow.epoch, self._client.client_id, outflow.mark, 0)
        self._pace.spend(spent + self._tell(link, inbox, topic, mark))
        return True

    def _tell(self, link: ClientLink, inbox: bytes, topic: bytes, frame: bytes) -> int:
        repair = encode_repair(topic, frame)
        link.tell(inbox, repair)
        return len(repair) + len(inbox)
