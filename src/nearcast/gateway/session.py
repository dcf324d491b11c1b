"""A session: one subscriber's connection as a machine, whatever transport carries it.

    NEW --login--> LOGGING_IN --welcomed--> OPEN --ended--> ENDED
    any other first frame, a refused login: answered, then ENDED with `bye`

Frames come in through `receive`, which answers what it can and returns what the gateway has to carry out. Everything
for the subscriber goes into the outbox; `wake` tells the transport that something is there.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from nearcast.gateway.delivery import Delivery
from nearcast.gateway.frames import (
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
    Welcome,
    decode_for_gateway,
)
from nearcast.gateway.outbox import Outbox
from nearcast.gateway.settings import GatewaySettings
from nearcast.gateway.tokens import Token


class State(Enum):
    NEW = "new"
    LOGGING_IN = "logging in"
    OPEN = "open"
    ENDED = "ended"


class Session:
    """Of one connection. `address`: where it comes from, for the limits before authentication."""

    def __init__(self, settings: GatewaySettings, address: str, wake: Callable[[], None]) -> None:
        self.address = address
        self.user = ""
        self.token: Token | None = None  # what it has logged in with
        self.state = State.NEW
        self.outbox = Outbox(settings)
        self.deliveries: dict[str, Delivery] = {}  # by subscription
        self.subscribing = 0  # subscriptions that are asked for, and in no delivery yet
        self.topics: set[str] = set()
        self.ending = ""  # why it ended
        self.has_work: Callable[[], None] = _nothing  # told when a delivery has something to catch up
        self._settings = settings
        self._wake = wake
        self._lagging = False
        self._unanswered = 0
        self._acknowledged: dict[str, int] = {}  # cursors not stored yet

    # --- in

    def receive(self, text: str | bytes) -> Login | Operation | Logout | None:
        """What the gateway has to carry out, if anything."""
        frame = decode_for_gateway(text)
        if self.state is State.OPEN:
            return self._receive_open(frame)
        if self.state is State.NEW and isinstance(frame, Login):
            self.state = State.LOGGING_IN
            return frame
        if self.state is State.NEW:
            problem = frame.problem if isinstance(frame, Refused) else "log in first"
            self.send(Refused(getattr(frame, "ref", None), problem))
            self.end("the first frame must be a login")
        elif self.state is State.LOGGING_IN:
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
                self.send(Refused(frame.ref, f"{self._unanswered} operations wait for their answer: wait too"))
            case _:
                self._unanswered += 1
                return frame
        return None

    def _acknowledge(self, ack: Ack) -> None:
        delivery = self.deliveries.get(ack.subscription)
        if delivery is None:
            return  # it was unsubscribed meanwhile
        # During a move the subscriber may have more from the gateway before than what was sent here.
        delivery.handed_over(ack.execution)
        if ack.execution > self._acknowledged.get(ack.subscription, 0):
            self._acknowledged[ack.subscription] = ack.execution

    def take_acknowledged(self) -> dict[str, int]:
        """Cursors to store, by subscription."""
        taken, self._acknowledged = self._acknowledged, {}
        return taken

    def put_back_acknowledged(self, cursors: dict[str, int]) -> None:
        """They could not be stored."""
        for subscription, execution in cursors.items():
            self._acknowledged[subscription] = max(execution, self._acknowledged.get(subscription, 0))

    # --- out

    def send(self, frame: FromGateway) -> None:
        if self.state is not State.ENDED:
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
        """Say that results after one execution up to and with another are not delivered."""
        delivery.handed_over(upto)
        self.send(Missed(delivery.subscription, after, upto))

    def send_message(self, topic: str, frame: bytes) -> None:
        if self.state is State.OPEN:
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

    def welcomed(self, user: str, token: Token, welcome: Welcome) -> None:
        if self.state is State.LOGGING_IN:
            self.user = user
            self.token = token
            self.send(welcome)
            self.state = State.OPEN

    def refuse_login(self, problem: str, *, final: bool) -> None:
        """`final`: the same login will be refused again."""
        self.send(Refused(None, problem, final))
        self.end("login refused", final=final)

    def end(self, reason: str, *, final: bool = False) -> None:
        """Nothing more is put; the transport sends what waits, and closes."""
        if self.state is not State.ENDED:
            self.outbox.put_last(Bye(reason, final))
            self.state = State.ENDED
            self.ending = reason
            self._wake()

    @property
    def registration(self) -> str:
        """Of its user; empty before the login."""
        return self.token.registration if self.token is not None else ""

    @property
    def is_open(self) -> bool:
        return self.state is State.OPEN

    @property
    def is_choked(self) -> bool:
        """More answers wait than operations are allowed: the transport reads on when the subscriber has."""
        return len(self.outbox) > self._settings.outbox_frames + self._settings.operations


def _nothing() -> None:
    pass
