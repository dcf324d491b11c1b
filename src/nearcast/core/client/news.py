"""What a client says besides messages: state changes, log notes, refused messages, and reasons for waiting.

News goes to the owner of the machine as it happens: how the client stands with its brokers, and what its program's log
may say. There is never one item per message.

Refusals are what a server will not do, as an error. `publish` raises by itself. `publish_nowait` has returned long
before the server refuses, so such messages are noted here, one note per topic, until `flush` reads them.

The last section puts into words what a call is waiting for. Calls that have waited too long use it in their errors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum, StrEnum
from typing import TYPE_CHECKING

import msgspec

from nearcast.core.model.names import decode_topic
from nearcast.core.model.placement import Placement, Unreadable
from nearcast.core.wire.backend import Denied
from nearcast.errors import AccessDenied, ClusterError, Unavailable, Unsupported

if TYPE_CHECKING:
    from nearcast.core.client.machine import Client
    from nearcast.core.client.patterns import PatternFlow
    from nearcast.core.client.publisher import TopicPublisher
    from nearcast.core.client.subscriber import TopicSubscriber


class State(StrEnum):
    """How a client stands with the brokers it uses."""

    CONNECTED = "connected"  # all brokers answer and have their leases
    DEGRADED = "degraded"  # some do not: their topics wait, all others continue
    DISCONNECTED = "disconnected"  # no server answers: everything waits
    CLOSED = "closed"


class StateChange(msgspec.Struct, frozen=True):
    """A client's new state, and the reason."""

    state: State
    reason: str = ""


class Kind(Enum):
    """What a note is about. All notes of one kind share a rate limit."""

    OPENED = "opened"
    LOST = "lost"
    RETRIED = "retried"
    REFUSED = "refused"
    INTERRUPTED = "interrupted"
    MOVED = "moved"


class Note(msgspec.Struct, frozen=True):
    """A line for the log."""

    kind: Kind
    text: str


def moved(what: str, placement: Placement, interrupted: str | None = None) -> Note:
    """Something of ours has a new placement. Says whether messages may have been missed on the way, and why."""
    text = f"{what} moved to {', '.join(placement.brokers)} ({placement.mode}, epoch {placement.epoch})"
    return Note(Kind.INTERRUPTED, f"{text}: {interrupted}") if interrupted else Note(Kind.MOVED, text)


Tell = Callable[[Note | StateChange], None]


def silent(news: Note | StateChange) -> None:
    """For a machine whose news is not wanted."""


# --- refusals


class Refusal(msgspec.Struct):
    """Messages of one topic that were refused and had no caller waiting."""

    count: int
    first: ClusterError


class Refusals:
    """The refused messages that had no caller waiting, by topic."""

    def __init__(self) -> None:
        self.count = 0  # since the client was made
        self._noted: dict[bytes, Refusal] = {}

    def note(self, topic: bytes, error: ClusterError, count: int = 1) -> None:
        self.count += count
        noted = self._noted.get(topic)
        if noted is None:
            self._noted[topic] = Refusal(count, error)
        else:
            noted.count += count

    def take(self) -> dict[bytes, Refusal]:
        """Everything refused since the last call, by topic."""
        noted, self._noted = self._noted, {}
        return noted


def summed_up(refused: dict[bytes, Refusal]) -> ClusterError:
    """One error for all of them: the type and text of the first."""
    (topic, refusal), *others = refused.items()
    text = f"{_messages(refusal.count)} on {decode_topic(topic)!r} refused: {refusal.first}"
    if others:
        rest = sum(other.count for _, other in others)
        text += f" (and {_messages(rest)} on {len(others)} more topics)"
    return type(refusal.first)(text)


def _messages(count: int) -> str:
    return "1 message" if count == 1 else f"{count} messages"


# --- errors, and what to do about them


def refused(broker: str, what: str, text: str) -> ClusterError:
    """The error for something a server refuses to do."""
    problem = f"{broker} refused {what}: {text}"
    if text.startswith("NOPERM"):
        return AccessDenied(f"{problem}: the user needs the commands, keys and channels listed in docs/security.md")
    return Unavailable(problem)


def not_found(broker: str, topic: bytes, answer: Denied | Unreadable) -> ClusterError:
    """The error for a record that was not available, or that only a newer version can read."""
    name = decode_topic(topic)
    if isinstance(answer, Unreadable):
        return Unsupported(f"{broker} has a record of {name!r} that says {answer.text}: upgrade nearcast here")
    return refused(broker, f"to say where {name!r} is", answer.text)


def unheard_of(broker: str) -> ClusterError:
    """The error for messages of a placement that no record has announced."""
    return Unavailable(f"{broker} delivers messages of a placement that this client has no record of: reading it again")


# --- what a call waits for, in words


def for_acknowledgements(topic_publishers: Collection[TopicPublisher], now_s: float) -> str:
    """Why the messages of these topics are not acknowledged yet."""
    return _first_of(
        [
            (decode_topic(topic_publisher.topic), _acknowledgement(topic_publisher, now_s))
            for topic_publisher in topic_publishers
        ]
    )


def for_attachment(client: Client, names: Collection[bytes], now_s: float) -> str:
    """Why topics or patterns of these names are not attached yet."""
    topics = [client.topic_subscribers[name] for name in names if name in client.topic_subscribers]
    patterns = [client.patterns[name] for name in names if name in client.patterns]
    reasons = [
        (topic_subscriber.name, _attachment(topic_subscriber, now_s))
        for topic_subscriber in topics
        if not topic_subscriber.joined
    ]
    reasons += [(flow.name, _pattern_attachment(flow, now_s)) for flow in patterns if not flow.joined]
    return _first_of(reasons)


def _first_of(reasons: list[tuple[str, str]]) -> str:
    """The first reason, with the name of its topic, and how many more are waiting."""
    if not reasons:
        return "the program was too busy to read the answer"
    name, reason = reasons[0]
    more = f"; {len(reasons) - 1} more topics wait" if len(reasons) > 1 else ""
    return f"{name!r}: {reason}{more}"


def _acknowledgement(topic_publisher: TopicPublisher, now_s: float) -> str:
    """Why what was published last is not acknowledged yet."""
    client = topic_publisher.client
    if topic_publisher.placement is None:
        return _not_found(client, topic_publisher.topic, now_s)
    owing = [lane for lane in topic_publisher.lanes if lane.counted < topic_publisher.sequence]
    silent = [lane.broker for lane in owing if lane.link is not None]
    return _first(
        *(client.links.trouble(lane.broker, now_s) for lane in owing),
        *(client.side_links.trouble_with(life) for life in topic_publisher.former_lanes.ended),
        *(client.side_links.trouble(lane.broker) for lane in owing),
        f"{silent[0]} has not acknowledged it" if silent else _moving(topic_publisher.upcoming),
        *(f"{lane.broker} has not confirmed that it carries the topic" for lane in owing),
    )


def _attachment(topic_subscriber: TopicSubscriber, now_s: float) -> str:
    """Why a subscription is not attached yet."""
    client = topic_subscriber.client
    if topic_subscriber.placement is None:
        return _not_found(client, topic_subscriber.topic, now_s)
    brokers = list(topic_subscriber.needed())
    held = [topic_subscriber.attachments.get(broker) for broker in brokers]
    shut = [name for name, attached in zip(brokers, held, strict=True) if attached is None or not attached.open]
    return _first(
        *(client.links.trouble(broker, now_s) for broker in brokers),
        _moving(topic_subscriber.upcoming),
        *(f"{broker} has not confirmed the subscription" for broker in shut),
        "the brokers have not confirmed where the topic is",
    )


def _pattern_attachment(flow: PatternFlow, now_s: float) -> str:
    """Why a pattern subscription is not attached yet."""
    links = flow.client.links
    missing = flow.missing()
    return _first(
        *(links.trouble(broker, now_s) for broker in missing),
        *(f"{broker} has not confirmed the subscription" for broker in missing),
        links.nobody(),
    )


def _not_found(client: Client, topic: bytes, now_s: float) -> str:
    directory = client.membership.directory(topic)
    if directory is None:
        return client.links.nobody()
    unsaid = "the client does not know yet where the topic is"
    return f"{unsaid}: {client.links.trouble(directory, now_s) or f'{directory} has not answered'}"


def _moving(upcoming: Placement | None) -> str | None:
    return f"the topic is being moved to {', '.join(upcoming.brokers)}" if upcoming is not None else None


def _first(*reasons: str | None) -> str:
    return next((reason for reason in reasons if reason), "an answer")
