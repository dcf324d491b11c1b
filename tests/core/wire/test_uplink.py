"""An uplink: opened, greeted, probed, and opened again whatever happens to it."""

from __future__ import annotations

from random import Random

import pytest

from nearcast.core.model.settings import DEFAULT_TIMING
from nearcast.core.wire.backend import Credentials
from nearcast.core.wire.effects import Connect, Disconnect, Effect
from nearcast.core.wire.link import Link, command
from nearcast.core.wire.uplink import Uplink

GREETED = b"%1\r\n$5\r\nproto\r\n:3\r\n"


class Held:
    """An uplink and what it asks of its driver."""

    def __init__(self, credentials: Credentials | None = None) -> None:
        self.effects: list[Effect] = []
        self.opened: list[Link] = []
        self.uplink = Uplink(
            "bus",
            "redis://store",
            credentials or Credentials(),
            lambda link, now_s: self.opened.append(link),
            timing=DEFAULT_TIMING,
            rng=Random(1),
        )

    def tick(self, now_s: float) -> list[Effect]:
        self.uplink.tick(now_s, self.effects)
        effects, self.effects = self.effects, []
        return effects

    def feed(self, data: bytes, now_s: float) -> list[Effect]:
        self.uplink.received(data, now_s, self.effects)
        effects, self.effects = self.effects, []
        return effects

    def open(self) -> Held:
        self.tick(0.0)
        self.uplink.connected(0.0)
        self.uplink.take()
        self.feed(GREETED, 0.0)
        return self


def test_it_opens_its_connection_once() -> None:
    held = Held()
    assert held.tick(0.0) == [Connect("bus", "redis://store")]
    assert held.tick(1.0) == []


@pytest.mark.parametrize(
    ("credentials", "auth"),
    [
        (Credentials(), ()),
        (Credentials("", "pw"), ("AUTH", "default", "pw")),
        (Credentials("ann", "pw"), ("AUTH", "ann", "pw")),
    ],
)
def test_it_greets_with_its_credentials(credentials: Credentials, auth: tuple[str, ...]) -> None:
    held = Held(credentials)
    held.tick(0.0)
    held.uplink.connected(0.0)
    assert held.uplink.take() == command("HELLO", 3, *auth, "SETNAME", "nc-bus")
    assert held.uplink.link is None
    held.feed(GREETED, 0.1)
    assert held.opened == [held.uplink.link]


def test_a_refused_greeting_is_told_and_tried_again() -> None:
    held = Held()
    held.tick(0.0)
    held.uplink.connected(0.0)
    assert held.feed(b"-WRONGPASS no\r\n", 0.1) == [Disconnect("bus")]
    assert "WRONGPASS no: give the user name and password in the URL" in held.uplink.problem
    assert held.tick(0.1) == []
    assert held.tick(1.0) == [Connect("bus", "redis://store")]


def test_a_server_that_never_answers_the_greeting_is_hung_up_on() -> None:
    held = Held()
    held.tick(0.0)
    held.uplink.connected(0.0)
    assert held.tick(DEFAULT_TIMING.lease_s - 0.1) == []
    assert held.tick(DEFAULT_TIMING.lease_s + 0.1) == [Disconnect("bus")]
    assert held.tick(DEFAULT_TIMING.lease_s + 1.0) == [Connect("bus", "redis://store")]


def test_an_open_connection_is_probed_and_the_answer_noted() -> None:
    held = Held().open()
    held.tick(0.5)
    assert held.uplink.take() == command("PING")
    held.feed(b"+PONG\r\n", 0.7)
    assert held.uplink.answered_s == 0.7
    assert held.tick(0.75) == []
    held.tick(1.0)
    assert held.uplink.take() == command("PING")


def test_a_connection_that_does_not_answer_is_closed_and_opened_again() -> None:
    held = Held().open()
    held.tick(0.5)
    assert held.tick(0.5 + DEFAULT_TIMING.lease_s) == []
    assert held.tick(0.6 + DEFAULT_TIMING.lease_s) == [Disconnect("bus")]
    assert held.uplink.link is None
    assert held.uplink.problem == "no answer"
    assert held.tick(2.0 + DEFAULT_TIMING.lease_s) == [Connect("bus", "redis://store")]


def test_a_lost_connection_is_opened_again_after_a_short_random_pause() -> None:
    held = Held().open()
    held.uplink.lost("reset by peer", 1.0)
    assert held.tick(1.0 + 0.9 * DEFAULT_TIMING.reconnect_min_s) == []
    assert held.tick(1.0 + 2.0 * DEFAULT_TIMING.reconnect_min_s) == [Connect("bus", "redis://store")]
    assert held.uplink.take() == b""


def test_what_comes_when_nothing_is_open_is_ignored() -> None:
    held = Held()
    assert held.feed(b"+OK\r\n", 0.0) == []
