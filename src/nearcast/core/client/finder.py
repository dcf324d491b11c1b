"""Finding topics: asks the directories where a client's topics are, once more after data loss, and in a new cluster."""

from __future__ import annotations

from collections import OrderedDict, deque
from functools import partial
from typing import TYPE_CHECKING

from nearcast.core.client.news import Kind, Note
from nearcast.core.model.membership import Membership
from nearcast.core.model.placement import Record, Unreadable
from nearcast.core.model.settings import NEVER_S

if TYPE_CHECKING:
    from nearcast.core.client.machine import Client
    from nearcast.core.wire.backend import ClientLink, Denied


class Finder:
    """Asks where topics are, for clients with few topics and for clients with very many.

    A question on an open link is either answered or lost with the link, so none is asked twice on one link. Only a
    limited number are open on a link at a time: other traffic on the link, above all the proof of the lease, must not
    get stuck behind them. The rest wait in line for their directory.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._asked_s: dict[bytes, float] = {}  # topics being looked up, and when the current lookup started
        self._open: dict[bytes, ClientLink] = {}  # questions in flight
        # Directory -> topics waiting for room, or for a link; None -> topics waiting for the ring to open.
        self._lines: dict[str | None, OrderedDict[bytes, None]] = {}
        self._standing: dict[bytes, str | None] = {}  # topics in line, and their directory

    def ask(self, topic: bytes, now_s: float) -> None:
        """Look up a topic. Callers that still need it ask again later."""
        if topic in self._open or now_s - self._asked_s.get(topic, NEVER_S) < self._client.timing.retry_s:
            return
        self._asked_s[topic] = now_s
        if topic not in self._standing:
            self._put(topic, now_s)
        elif (directory := self._standing[topic]) is not None:
            self._client.links.reach(directory, now_s)

    def forget(self, topic: bytes) -> None:
        """The topic is no longer needed."""
        self._asked_s.pop(topic, None)
        if topic in self._standing:
            del self._lines[self._standing.pop(topic)][topic]

    def _put(self, topic: bytes, now_s: float) -> None:
        client = self._client
        directory = client.membership.directory(topic)
        link = client.links.reach(directory, now_s) if directory is not None else None
        if directory is not None and link is not None and client.links.has_room(link):
            self._send(topic, directory, link)
        else:
            self._lines.setdefault(directory, OrderedDict())[topic] = None
            self._standing[topic] = directory

    def _send(self, topic: bytes, directory: str, link: ClientLink) -> None:
        version = self._client.membership.version
        self._open[topic] = link
        answered = partial(self._answered, link, directory, version, topic)
        link.look_up(topic, version, answered)

    def go_on(self, link: ClientLink, now_s: float) -> None:
        """There may be room on a link. Topics found in the meantime leave the line."""
        line = self._lines.get(link.broker)
        while line and self._client.links.has_room(link):
            topic, _ = line.popitem(last=False)
            del self._standing[topic]
            if topic not in self._open and self._client.looks_for(topic, now_s):
                self._send(topic, link.broker, link)

    def link_lost(self, link: ClientLink, now_s: float) -> None:
        """Ask again what the link has not answered."""
        for topic in [topic for topic, asked in self._open.items() if asked is link]:
            del self._open[topic]
            self._put(topic, now_s)

    def membership_changed(self, now_s: float) -> None:
        """Directories may have changed."""
        lines, self._lines, self._standing = self._lines, {}, {}
        for line in lines.values():
            for topic in line:
                if self._client.looks_for(topic, now_s):
                    self._put(topic, now_s)

    def _answered(
        self,
        link: ClientLink,
        directory: str,
        version: int,
        topic: bytes,
        found: Record | Unreadable | Membership | Denied | None,
        now_s: float,
    ) -> None:
        if self._open.get(topic) is link:
            del self._open[topic]
        if found is not None and not isinstance(found, Membership):
            self._asked_s.pop(topic, None)
        self._client.found(directory, topic, found, now_s)
        if isinstance(found, Membership) and self._client.membership.version > version and topic in self._asked_s:
            self._put(topic, now_s)  # its directory had a newer ring


# --- after the store has lost data


class Recheck:
    """Asks again where topics are after the store has lost data.

    The journal was then rebuilt from what the brokers had. If a broker was gone by then, a topic that only it knew is
    no longer known: clients may still be attached to a broker that has no record of the topic, while others place it by
    first use at its directory. So in a new era of the membership every topic is looked up once. Usually nothing has
    changed.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._topics: OrderedDict[bytes, None] = OrderedDict()  # not answered yet

    def __contains__(self, topic: bytes) -> bool:
        return topic in self._topics

    def begin(self) -> None:
        self._topics = OrderedDict.fromkeys(self._client.topic_publishers | self._client.topic_subscribers)

    def found(self, topic: bytes) -> None:
        self._topics.pop(topic, None)

    def tick(self, now_s: float) -> None:
        """Ask for some topics. Each gets another turn until it is found."""
        client = self._client
        for _ in range(min(len(self._topics), client.limits.attended)):
            topic, _ = self._topics.popitem(last=False)
            if topic in client.topic_publishers or topic in client.topic_subscribers:
                self._topics[topic] = None
                client.finder.ask(topic, now_s)


_REASON = "the cluster was restarted from scratch"


# --- a cluster started from scratch


class Leaving:
    """Leaves a cluster that was restarted from scratch: a different one has taken its place.

    What the client knows about placements means nothing there. Subscribers are notified and join as if their topics
    were new. Publishers keep what is not acknowledged, and send it again once they know where the topic is now. Waiting
    calls keep waiting. A client may have very many topics, and its program shares the event loop, so a limited number
    of topics leave at each tick. Until the last topic has left, the client belongs to no cluster; then it joins the new
    one.
    """

    def __init__(self, client: Client, successor: Membership, now_s: float) -> None:
        """Forget all brokers now. Topic placements are forgotten over the next ticks."""
        self.successor = successor  # the membership to continue with
        self._client = client
        gone, client.membership = list(client.membership.brokers), Membership(version=-1, term=0, brokers={})
        client.tell(Note(Kind.LOST, f"{_REASON}: forgetting {len(gone)} brokers"))
        for broker in gone:
            client.links.forget(broker, now_s)
            for pattern in client.patterns.values():
                pattern.forget(broker, now_s)
        self._topics = deque(client.topic_publishers | client.topic_subscribers)

    def hear(self, membership: Membership) -> None:
        """News about the membership while we are leaving."""
        if membership.cluster != self.successor.cluster or membership.version > self.successor.version:
            self.successor = membership

    def go_on(self, now_s: float) -> bool:
        """Let some topics leave. Returns whether all have left."""
        client = self._client
        for _ in range(min(len(self._topics), client.limits.attended)):
            topic = self._topics.popleft()
            for flow in (client.topic_publishers.get(topic), client.topic_subscribers.get(topic)):
                if flow is not None:
                    flow.begin_again(_REASON, now_s)
        return not self._topics
