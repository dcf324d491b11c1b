"""A session: one subscriber's connection as a machine, independent of the transport that carries it.

    NEW --login--> LOGGING_IN --welcomed--> OPEN --ended--> ENDED
    any other first frame, a refused login: answered, then ENDED with `bye`

Frames come in through `receive`, which answers what it can and returns what the gateway has to carry out. Everything
for the subscriber goes into the `Outbox`; `wake` tells the transport that something is there. A `Delivery` decides
which executions of one subscription are sent.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum

import msgspec

from nearcast.core.model.settings import NEVER_S
from nearcast.core.model.tokens import Token
from nearcast.core.wire.gateway import (
    Ack,
    Bye,
    Done,
    FromGateway,
    Lagging,
    Login,
    Logout,
    Missed,
    Operation,
    Ping,
    Pong,
    Refused,
    ToGateway,
    TopicGap,
    Welcome,
    decode_for_gateway,
    encode,
)
from nearcast.core.wire.probes import Distance
from nearcast.gateway.settings import GatewaySettings


class DeliveryState(Enum):
    """The state of a delivery; see `Delivery`."""

    CATCHING_UP = "catching up"
    LIVE = "live"
    LAGGING = "lagging"


class Step(msgspec.Struct, frozen=True):
    """What follows from a list: report what was missed, then hand these over one by one with `handed_over`."""

    missed: tuple[int, int] | None
    executions: tuple[int, ...]


# --- deliveries


class Delivery:
    """Decides which executions of one subscription go to one session: each once, in order, none left out.

    Executions arrive in two ways: notifications, which are fast but may be lost, duplicated or late, and the list of
    executions after a number, which is slow and complete. A delivery begins with the list, and is *live* once a list
    had nothing more and no notification came in the meantime that the list could not include. Whenever notifications
    may have been lost, it goes back to the list; so does the delivery of a subscriber without room.

        CATCHING_UP --nothing more, nothing heard meanwhile--> LIVE
        LIVE, CATCHING_UP --no room--> LAGGING --room--> CATCHING_UP
        LIVE --notifications may be lost--> CATCHING_UP

    `cursor` is the last execution the subscriber has. `position` is the last execution handed over, or known to hold
    nothing for it. It only grows, so an execution at or below it is a repeat. There is no clock and no waiting: the
    gateway asks with `list_after`, reports with `listed`, and does what the answer says.
    """

    def __init__(self, subscription: str, channel: str, from_execution: int, cursor: int) -> None:
        self.subscription = subscription
        self.channel = channel
        self.position = max(cursor, from_execution - 1)
        self.state = DeliveryState.CATCHING_UP
        self._heard = 0  # the newest execution notified
        self._in_touch = True  # no notification was lost since the list was asked for

    def list_after(self) -> int | None:
        """The number after which to list executions now; None: no need."""
        if self.state is not DeliveryState.CATCHING_UP:
            return None
        self._in_touch = True
        return self.position

    def notified(self, execution: int) -> bool:
        """A notification came: whether to fetch the execution, and hand it over if it `is_due` by then."""
        self._heard = max(self._heard, execution)
        return self.is_due(execution)

    def is_due(self, execution: int) -> bool:
        """Whether a notified execution is the next to hand over."""
        return self.state is DeliveryState.LIVE and execution > self.position

    def handed_over(self, execution: int) -> None:
        self.position = max(self.position, execution)

    def listed(self, executions: Sequence[int], upto: int, oldest: int, back: int) -> Step:
        """Take the list of what is after `position`: in order, perhaps only its beginning.

        `upto`: the last committed execution. `oldest`: the first one still kept. `back`: how many of the channel's
        executions the subscriber may get at most; older ones are missed.
        """
        if self.state is not DeliveryState.CATCHING_UP:
            return Step(None, ())
        missed = self._missed(executions, upto, oldest, back)
        if missed is not None:
            self.position = missed[1]
        due = tuple(execution for execution in executions if execution > self.position)
        if not executions:
            self.position = max(self.position, upto)
            if self._in_touch and self._heard <= self.position:
                self.state = DeliveryState.LIVE
        return Step(missed, due)

    def _missed(self, executions: Sequence[int], upto: int, oldest: int, back: int) -> tuple[int, int] | None:
        gone = oldest - 1
        too_far_back = upto - back
        if executions and executions[0] <= too_far_back:
            gone = max(gone, too_far_back)
        return (self.position, gone) if gone > self.position else None

    def lost_touch(self) -> None:
        """Notifications up to now may have been lost, or a result could not be fetched."""
        self._in_touch = False
        if self.state is DeliveryState.LIVE:
            self.state = DeliveryState.CATCHING_UP

    def no_room(self) -> bool:
        """The subscriber's outbox is full; whether that is news."""
        news = self.state is not DeliveryState.LAGGING
        self.state = DeliveryState.LAGGING
        return news

    def room(self) -> None:
        if self.state is DeliveryState.LAGGING:
            self.state = DeliveryState.CATCHING_UP


# --- the outbox


_SLOW = "the subscriber is too slow"


class Outbox:
    """Encoded frames waiting for a subscriber, in order within each kind, with a limit per kind.

    - Results beyond the limit are not accepted; the caller leaves them in storage and catches up later.
    - Topic messages are not stored anywhere. Beyond the limit the oldest are dropped, and a `gap` with their number
      precedes what follows.
    - Answers and notices are always accepted. The limit on unanswered operations bounds their number.

    Results and messages are counted separately, so neither can crowd out the other.
    """

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._frames: deque[tuple[bytes, bool]] = deque()  # and whether it is a result
        self._results = 0
        self._results_bytes = 0
        self._messages: deque[tuple[str, bytes]] = deque()
        self._messages_bytes = 0
        self._dropped: dict[str, int] = {}  # by topic, since the last gap was taken
        self.dropped = 0  # messages, over all time
        self._last: bytes | None = None

    def __len__(self) -> int:
        return len(self._frames) + len(self._messages) + len(self._dropped) + (self._last is not None)

    @property
    def has_room(self) -> bool:
        """Whether half of the results' limit is free: catching up in smaller steps would cost a list each."""
        limits = self._settings
        return 2 * self._results <= limits.outbox_frames and 2 * self._results_bytes <= limits.outbox_bytes

    def put(self, frame: FromGateway) -> None:
        """An answer or a notice."""
        self._frames.append((encode(frame), False))

    def put_last(self, frame: FromGateway) -> None:
        """A frame that is taken once nothing else waits."""
        self._last = encode(frame)

    def put_result(self, frame: bytes) -> bool:
        """Whether there was room. A result larger than the limit is taken if it is the only one."""
        limits = self._settings
        if self._results and (
            self._results >= limits.outbox_frames or self._results_bytes + len(frame) > limits.outbox_bytes
        ):
            return False
        self._frames.append((frame, True))
        self._results += 1
        self._results_bytes += len(frame)
        return True

    def put_message(self, topic: str, frame: bytes) -> None:
        limits = self._settings
        self._messages.append((topic, frame))
        self._messages_bytes += len(frame)
        while len(self._messages) > limits.message_frames or self._messages_bytes > limits.message_bytes:
            oldest, dropped = self._messages.popleft()
            self._messages_bytes -= len(dropped)
            self._dropped[oldest] = self._dropped.get(oldest, 0) + 1
            self.dropped += 1

    def take(self) -> bytes | None:
        """The next frame; None if nothing waits."""
        if self._frames:
            frame, is_result = self._frames.popleft()
            if is_result:
                self._results -= 1
                self._results_bytes -= len(frame)
            return frame
        if self._dropped:
            topic, count = self._dropped.popitem()
            return encode(TopicGap(topic, count, _SLOW))
        if self._messages:
            _, frame = self._messages.popleft()
            self._messages_bytes -= len(frame)
            return frame
        last, self._last = self._last, None
        return last


class SessionState(Enum):
    """The state of a session; the module's docstring shows how it changes."""

    NEW = "new"
    LOGGING_IN = "logging in"
    OPEN = "open"
    ENDED = "ended"


# --- the session


class Session:
    """The session of one connection. `address`: where it comes from, for the limits before authentication."""

    def __init__(self, settings: GatewaySettings, address: str, wake: Callable[[], None]) -> None:
        self.address = address
        self.user = ""
        self.token: Token | None = None  # what it has logged in with
        self.state = SessionState.NEW
        self.outbox = Outbox(settings)
        self.deliveries: dict[str, Delivery] = {}  # by subscription
        self.subscribing = 0  # subscriptions asked for that have no delivery yet
        self.topics: set[str] = set()
        self.published_s = NEVER_S  # to a topic, the last time
        self.distance = Distance()  # of the user from the gateway
        self.ending = ""  # why it ended
        self.has_work: Callable[[], None] = _nothing  # called when a delivery has something to catch up on
        self._settings = settings
        self._wake = wake
        self._lagging = False
        self._unanswered = 0
        self._acknowledged: dict[str, int] = {}  # cursors not stored yet

    # --- in

    def receive(self, text: str | bytes) -> Login | Operation | Logout | None:
        """What the gateway has to carry out, if anything."""
        frame = decode_for_gateway(text)
        if self.state is SessionState.OPEN:
            return self._receive_open(frame)
        if self.state is SessionState.NEW and isinstance(frame, Login):
            self.state = SessionState.LOGGING_IN
            return frame
        if self.state is SessionState.NEW:
            problem = frame.problem if isinstance(frame, Refused) else "log in first"
            self.send(Refused(getattr(frame, "ref", None), problem))
            self.end("the first frame must be a login")
        elif self.state is SessionState.LOGGING_IN:
            self.send(Refused(getattr(frame, "ref", None), "wait for the welcome"))
        return None

    def _receive_open(self, frame: ToGateway | Refused) -> Operation | Logout | None:
        match frame:
            case Refused():
                self.send(frame)
            case Login():
                self.send(Refused(None, "already logged in"))
            case Ping():
                self.send(Pong())
            case Ack():
                self._acknowledge(frame)
            case Logout():
                return frame
            case _ if self._unanswered >= self._settings.operations:
                self.send(Refused(frame.ref, f"{self._unanswered} operations are unanswered: wait for their answers"))
            case _:
                self._unanswered += 1
                return frame
        return None

    def _acknowledge(self, ack: Ack) -> None:
        delivery = self.deliveries.get(ack.subscription)
        if delivery is None:
            return  # it was unsubscribed meanwhile
        # During a move the subscriber may have received more from the old gateway than was sent here.
        delivery.handed_over(ack.execution)
        if ack.execution > self._acknowledged.get(ack.subscription, 0):
            self._acknowledged[ack.subscription] = ack.execution

    def take_acknowledged(self) -> dict[str, int]:
        """Cursors to store, by subscription."""
        taken, self._acknowledged = self._acknowledged, {}
        return taken

    def put_back_acknowledged(self, cursors: dict[str, int]) -> None:
        """These cursors could not be stored."""
        for subscription, execution in cursors.items():
            self._acknowledged[subscription] = max(execution, self._acknowledged.get(subscription, 0))

    # --- out

    def send(self, frame: FromGateway) -> None:
        if self.state is not SessionState.ENDED:
            self.outbox.put(frame)
            self._wake()

    def deliver(self, delivery: Delivery, execution: int, frame: bytes) -> bool:
        """Hand over a result; whether there was room."""
        if not self.outbox.put_result(frame):
            self._lagging = True
            if delivery.no_room():
                self.send(Lagging(delivery.subscription))
            return False
        delivery.handed_over(execution)
        self._wake()
        return True

    def miss(self, delivery: Delivery, after: int, upto: int) -> None:
        """Report that results after one execution, up to and including another, are not delivered."""
        delivery.handed_over(upto)
        self.send(Missed(delivery.subscription, after, upto))

    def send_message(self, topic: str, frame: bytes) -> None:
        if self.state is SessionState.OPEN:
            self.outbox.put_message(topic, frame)
            self._wake()

    def answer(self, frame: Done | Refused) -> None:
        """The answer to an operation that `receive` returned."""
        self._unanswered -= 1
        self.send(frame)

    def take(self) -> bytes | None:
        """The next frame for the subscriber; None if nothing waits."""
        frame = self.outbox.take()
        if self._lagging and self.outbox.has_room:
            self._lagging = False
            for delivery in self.deliveries.values():
                delivery.room()
            self.has_work()
        return frame

    # --- life

    def uses_topics(self, now_s: float, within_s: float) -> bool:
        """Whether it subscribes to some, or has published within this time."""
        return bool(self.topics) or now_s - self.published_s <= within_s

    def welcomed(self, user: str, token: Token, welcome: Welcome) -> None:
        if self.state is SessionState.LOGGING_IN:
            self.user = user
            self.token = token
            self.send(welcome)
            self.state = SessionState.OPEN

    def refuse_login(self, problem: str, *, final: bool) -> None:
        """`final`: the same login would be refused again."""
        self.send(Refused(None, problem, final))
        self.end("login refused", final=final)

    def end(self, reason: str, *, final: bool = False) -> None:
        """Accept nothing more; the transport sends what is waiting, and closes."""
        if self.state is not SessionState.ENDED:
            self.outbox.put_last(Bye(reason, final))
            self.state = SessionState.ENDED
            self.ending = reason
            self._wake()

    @property
    def registration(self) -> str:
        """The registration of its user; empty before the login."""
        return self.token.registration if self.token is not None else ""

    @property
    def is_open(self) -> bool:
        return self.state is SessionState.OPEN

    @property
    def is_choked(self) -> bool:
        """Whether more answers wait than operations are allowed: the transport reads on once the subscriber has."""
        return len(self.outbox) > self._settings.outbox_frames + self._settings.operations


def _nothing() -> None:
    pass
