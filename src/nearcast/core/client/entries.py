"""Entries: where a topic publisher may write (PROTOCOL, publisher rule 1)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from nearcast.core.client.news import not_found
from nearcast.core.model.logs import last_numbers
from nearcast.core.model.placement import Record, Unreadable
from nearcast.core.wire.backend import Denied

if TYPE_CHECKING:
    from nearcast.core.client.publisher import TopicPublisher
    from nearcast.core.wire.backend import ClientLink


Found = Record | Unreadable | Denied | None
OnLook = Callable[[Found, int, float], None]


class Entries:
    """The links on which the topic's control channel is held, and its record was read after that.

    An entry lasts as long as its link. It is made for every broker the topic publisher uses, and left a while after it
    is no longer used.
    """

    def __init__(self, topic_publisher: TopicPublisher) -> None:
        self._topic_publisher = topic_publisher
        self._open: dict[str, ClientLink] = {}
        self._entering: dict[str, ClientLink] = {}
        self._unconfirmed: set[str] = set()  # entered but without a record, although it should have one
        self._forgotten = 0  # how often all were given up: anything read before that proves nothing

    @property
    def unconfirmed(self) -> bool:
        """Whether a broker has no record of the topic although it should have one."""
        return bool(self._unconfirmed)

    def enter(self, broker: str, now_s: float) -> ClientLink | None:
        """The link to publish on at this broker, if it is ready. Otherwise it is being made ready."""
        link = self.link_to(broker)
        if link is None and broker not in self._entering and self._topic_publisher.uses(broker):
            self._topic_publisher.client.links.want(broker, self._topic_publisher, now_s)
        return link

    def link_to(self, broker: str) -> ClientLink | None:
        """The link to publish on at this broker, if it is ready."""
        return self._open.get(broker)

    def linked(self, link: ClientLink) -> None:
        """A link is up: enter there if it is still a target."""
        broker, topic_publisher = link.broker, self._topic_publisher
        if broker in self._open or self._entering.get(broker) is link or not topic_publisher.uses(broker):
            return
        self._entering[broker] = link
        link.users[topic_publisher] = None
        topic_publisher.client.watch(link, topic_publisher.topic)
        self._read(link)

    def _read(self, link: ClientLink) -> None:
        self._look(link, partial(self._entered, link, self._forgotten))

    def look_again(self, broker: str, then: Callable[[ClientLink, Found, int, float], None]) -> bool:
        """Read again what a broker has, if we have entered there. Returns whether we have."""
        link = self.link_to(broker)
        if link is not None:
            self._look(link, partial(then, link))
        return link is not None

    def _look(self, link: ClientLink, then: OnLook) -> None:
        """Read the record, and after that the last number kept there: what was read behind a fence is final."""
        topic_publisher, found = self._topic_publisher, list[Found]()
        topic, publisher = topic_publisher.topic, topic_publisher.client.client_id
        life, quorum = topic_publisher.keeper_life(link.broker), topic_publisher.former_lanes.quorum
        numbers = last_numbers(life)

        def read(record: Found, now_s: float) -> None:
            found.append(record)
            if not life:
                then(record, 0, now_s)
            elif quorum > 1:
                topic_publisher.client.side_links.quorum(link).ask(
                    topic_publisher,
                    quorum - 1,
                    lambda second, numbered: second.confirm_number(numbers, topic, publisher, numbered),
                    partial(then, record),
                )

        link.read_record(topic, topic_publisher.client.membership, read)
        if life and quorum == 1:
            link.read_number(numbers, topic, publisher, lambda kept, now_s: then(found[0], kept, now_s))

    def _entered(self, link: ClientLink, forgotten: int, record: Found, kept: int, now_s: float) -> None:
        topic_publisher, broker = self._topic_publisher, link.broker
        if self._entering.get(broker) is not link or forgotten != self._forgotten:
            return
        if isinstance(record, (Unreadable, Denied)):
            topic_publisher.refuse_all(not_found(broker, topic_publisher.topic, record))
            return
        if record is None and topic_publisher.unplaced and topic_publisher.writes_to(broker):
            # The server came back with an empty memory: only the directory knows where the topic is now.
            self._unconfirmed.add(broker)
            topic_publisher.client.attend(topic_publisher)
            return
        del self._entering[broker]
        self._open[broker] = link
        topic_publisher.entered(link, record, kept, now_s)

    def unlinked(self, link: ClientLink) -> None:
        """A link is gone."""
        if self._open.get(link.broker) is link:
            del self._open[link.broker]
        if self._entering.get(link.broker) is link:
            del self._entering[link.broker]
            self._unconfirmed.discard(link.broker)

    def confirm(self) -> None:
        """Read again wherever a record was missing."""
        unconfirmed, self._unconfirmed = self._unconfirmed, set()
        for broker in sorted(unconfirmed):
            self._read(self._entering[broker])

    def leave_unused(self) -> None:
        """Release the control channels of brokers that are no longer targets."""
        for broker, link in list(self._open.items()):
            if not self._topic_publisher.uses(broker):
                del self._open[broker]
                self._release(link)

    def leave_all(self) -> None:
        links = [*self._open.values(), *self._entering.values()]
        self._forgotten += 1
        for names in (self._open, self._entering, self._unconfirmed):
            names.clear()
        for link in links:
            self._release(link)

    def _release(self, link: ClientLink) -> None:
        topic_publisher = self._topic_publisher
        topic_publisher.client.unwatch(link, topic_publisher.topic, [])
        topic_publisher.client.side_links.leave(link, topic_publisher)
        link.users.pop(topic_publisher, None)

    def holds(self, link: ClientLink) -> bool:
        """Whether the control channel is needed on the link."""
        return link in (self._open.get(link.broker), self._entering.get(link.broker))
