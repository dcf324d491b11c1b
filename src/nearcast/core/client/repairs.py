"""Repairs: how a subscriber asks for messages it missed, and how a publisher answers (PROTOCOL, rules 6, 7 and 10).

`Repairs` is the subscriber's side, `Answers` the publisher's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING

from nearcast.core.model.names import inbox_channel
from nearcast.core.model.settings import RateLimit
from nearcast.core.wire.frames import HEADER, MARK, encode_ask, encode_repair

if TYPE_CHECKING:
    from nearcast.core.client.machine import Client
    from nearcast.core.client.ordering import PublisherOrder
    from nearcast.core.client.publisher import TopicPublisher
    from nearcast.core.wire.backend import ClientLink


TRIES = 4
ASKS_PER_S = 5000.0  # per client
ASKS_BURST = 1000.0

Route = Callable[[int], "list[ClientLink]"]  # publisher -> where it can be asked now


# --- requests


class _Wish:
    """A request to one publisher."""

    __slots__ = ("answers", "at_s", "tries")

    def __init__(self, answers: int, at_s: float) -> None:
        self.answers = answers  # that are still needed
        self.at_s = at_s
        self.tries = TRIES


class Repairs:
    """A subscriber's requests to the publishers of a topic.

    A request goes to the inbox of its publisher, on a server the publisher writes to; no other client gets it. It is
    repeated until it is answered. After an interruption a second answer is needed: messages sent while we were away may
    have been acknowledged only after the first.
    """

    def __init__(self, client: Client, topic: bytes, lines: PublisherOrder) -> None:
        self._client = client
        self._topic = topic
        self._lines = lines
        self._wishes: dict[int, _Wish] = {}

    @property
    def pending(self) -> bool:
        return bool(self._wishes)

    @property
    def asked(self) -> Collection[int]:
        """The publishers that have been asked, or will be."""
        return self._wishes.keys()

    def ask_all(self, now_s: float) -> None:
        """We were away: ask every publisher we know."""
        self._ask(self._lines.last, 2, now_s)

    def ask(self, publishers: Iterable[int], now_s: float) -> None:
        """Holes were found in the lines of these publishers."""
        self._ask([publisher for publisher in publishers if publisher not in self._wishes], 1, now_s)

    def _ask(self, publishers: Iterable[int], answers: int, now_s: float) -> None:
        # Soon, at a random moment: many subscribers may have lost the same server.
        at_s = now_s + self._client.rng.random() * self._client.timing.resync_s / 4
        for publisher in publishers:
            self._wishes[publisher] = _Wish(answers, at_s)

    def answered(self, publisher: int) -> None:
        """The publisher has sent what it has."""
        wish = self._wishes.get(publisher)
        if wish is not None:
            wish.answers -= 1
            if not wish.answers:
                del self._wishes[publisher]

    def tick(self, route: Route, now_s: float) -> None:
        """Send the requests that are due."""
        rate = self._client.asking
        for publisher, wish in list(self._wishes.items()):
            if now_s < wish.at_s:
                continue
            if rate.room(now_s) < 1:
                return
            have, links = self._lines.last.get(publisher), route(publisher)
            if have is None or not links:
                continue
            for link in links:
                link.tell(inbox_channel(publisher), encode_ask(self._topic, self._client.client_id, have))
            rate.spend(len(links))
            wish.at_s = now_s + self._client.timing.resync_s
            wish.tries -= 1
            if not wish.tries:
                del self._wishes[publisher]


# --- answers


BYTES_PER_S = 8 << 20  # for all answers of one client
BURST_BYTES = 1 << 20
SLICE_BYTES = 64 << 10  # of one answer, before the next one gets its turn
WAITING_MAX = 1000  # answers; a subscriber that finds no room asks again


class _Answer:
    """What is being sent to one subscriber."""

    __slots__ = ("link", "next", "topic_publisher")

    def __init__(self, topic_publisher: TopicPublisher, link: ClientLink, start: int) -> None:
        self.topic_publisher = topic_publisher
        self.link = link
        self.next = start  # number of the first message not sent yet


class Answers:
    """What a publisher sends to subscribers that ask (publisher rule 10).

    Many subscribers may have lost the same server and ask for the whole ring, all at once. They are answered in turns,
    a slice each, at a bounded total rate, so that new messages do not wait behind repairs. Asking again while the
    answer is being sent changes nothing.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: dict[tuple[bytes, int], _Answer] = {}  # (topic, subscriber)
        self._rate = RateLimit(BYTES_PER_S, BURST_BYTES)
        self.turned_away = 0

    def ask(self, topic_publisher: TopicPublisher, link: ClientLink, asker: int, have: int, now_s: float) -> None:
        """A subscriber has our messages up to a number and wants the rest."""
        key = (topic_publisher.topic, asker)
        under_way = self._waiting.get(key)
        if under_way is not None and under_way.link is link:
            return
        if under_way is None and len(self._waiting) >= WAITING_MAX:
            self.turned_away += 1
            return
        self._waiting[key] = _Answer(topic_publisher, link, have + 1)
        self._client.attend(self)
        self._serve(now_s)

    def serves(self, topic_publisher: TopicPublisher) -> bool:
        """Whether a subscriber is being sent messages of this topic publisher."""
        return any(answer.topic_publisher is topic_publisher for answer in self._waiting.values())

    def tick(self, now_s: float) -> bool:
        """Returns whether it needs attention again."""
        self._serve(now_s)
        return bool(self._waiting)

    def _serve(self, now_s: float) -> None:
        while self._waiting and self._rate.room(now_s) > 0:
            key = next(iter(self._waiting))
            answer = self._waiting.pop(key)
            if self._client.links.up(answer.link.broker) is not answer.link:
                continue  # the subscriber used the same server, and will ask again
            if not self._send_slice(answer, *key):
                self._waiting[key] = answer

    def _send_slice(self, answer: _Answer, topic: bytes, asker: int) -> bool:
        """Returns whether the answer is complete."""
        topic_publisher, link, inbox = answer.topic_publisher, answer.link, inbox_channel(asker)
        spent = 0
        for sequence, payload, time_ns in topic_publisher.kept(answer.next):
            if spent >= SLICE_BYTES:
                answer.next = sequence
                self._rate.spend(spent)
                return False
            header = HEADER.pack(
                topic_publisher.packing.word(sequence, payload),
                topic_publisher.epoch,
                self._client.client_id,
                sequence,
                time_ns,
            )
            spent += self._tell(link, inbox, topic, header + (payload or b""))
        mark = HEADER.pack(MARK, topic_publisher.epoch, self._client.client_id, topic_publisher.mark, 0)
        self._rate.spend(spent + self._tell(link, inbox, topic, mark))
        return True

    def _tell(self, link: ClientLink, inbox: bytes, topic: bytes, frame: bytes) -> int:
        repair = encode_repair(topic, frame)
        link.tell(inbox, repair)
        return len(repair) + len(inbox)
