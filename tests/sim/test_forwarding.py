"""The forwarding variant: each way in which it loses a message, played through.

H0 is the broker a topic leaves and H1 the one it goes to; D0 and D1 are their dispatchers.
"""

from __future__ import annotations

import pytest

from nearcast.errors import UsageError
from nearcast.sim.forwarding.comparison import Tally, count_forwarding
from nearcast.sim.forwarding.wire import Timers
from nearcast.sim.forwarding.world import ForwardingWorld, Publisher, Subscriber
from nearcast.sim.network import LinkModel
from nearcast.sim.programs import Publication
from nearcast.sim.world import Setup

TOPIC = b"topic-0"
QUICK_S = 0.001
AWAY_S = 0.02  # a subscriber's way to H1: it hears of the move long before it is there


class Wire(LinkModel, frozen=True, kw_only=True):
    """A link whose delay a play sets, and may change."""

    delays_s: dict[tuple[str, str], float]
    ends: tuple[str, str]

    def draw(self, rng: object) -> float:
        return self.delays_s.get(self.ends, QUICK_S)


class Play:
    """A world in which nothing happens by itself. `owner` has the topic on the ring and when the play begins."""

    def __init__(self, *, brokers: int = 2, timers: Timers | None = None) -> None:
        self.delays_s: dict[tuple[str, str], float] = {}
        setup = Setup(
            brokers=brokers,
            topics=1,
            publishers=0,
            early_subscribers=0,
            late_subscribers=0,
            moves_per_s=0.0,
            traffic_s=0,
        )
        self.world = ForwardingWorld(7, setup, links=self._wire, timers=timers)
        self.owner = self.world.ring.owner(TOPIC)
        self.others = [broker for broker in self.world.brokers if broker != self.owner]
        self.world.timeline.run_until(1.0)

    def _wire(self, process: str, server: str) -> LinkModel:
        return Wire(0.0, 0.0, delays_s=self.delays_s, ends=(process, server))

    def slow(self, process: str, server: str, delay_s: float) -> None:
        self.delays_s[(process, server)] = delay_s

    def run(self, for_s: float) -> None:
        self.world.timeline.run_until(self.world.timeline.now_s + for_s)

    def subscriber(self) -> Subscriber:
        subscriber = Subscriber(self.world, len(self.world.receivers), TOPIC)
        self.world.receivers.append(subscriber)
        self.run(0.5)
        return subscriber

    def publisher(self) -> Publisher:
        publisher = Publisher(self.world, len(self.world.senders))
        self.world.senders.append(publisher)
        self.run(0.5)
        return publisher

    def move(self, broker: str, *, then_s: float = 0.05) -> None:
        self.world.move(TOPIC, broker)
        self.run(then_s)

    def crash(self, broker: str) -> None:
        """The dispatcher of this broker is away for 0.2 s."""
        self.world.crash_control(f"agent {broker}", 0.2)

    def ran_at(self, publication: Publication) -> list[str]:
        runs = self.world.history.runs[(publication.publisher, TOPIC, publication.sequence)]
        return [run.server for run in runs]

    def tally(self) -> Tally:
        self.run(3.0)
        return count_forwarding(self.world)


def got(subscriber: Subscriber, publication: Publication) -> bool:
    return (publication.publisher, publication.sequence) in subscriber.received


# --- moves in which every message has luck


def test_everybody_finds_the_topic_where_it_is() -> None:
    play = Play(brokers=3)
    target = play.others[0]
    play.move(target)
    subscriber, publisher = play.subscriber(), play.publisher()
    assert subscriber.attached == target  # sent on by the dispatcher of the ring's owner
    first = publisher.publish(TOPIC)
    play.run(0.1)
    second = publisher.publish(TOPIC)
    play.run(0.1)
    assert play.ran_at(first) == [play.owner, target]  # forwarded, and the publisher told
    assert play.ran_at(second) == [target]
    assert play.tally() == Tally(acknowledged=2, owed=2)


def test_a_move_with_quick_links_loses_nothing() -> None:
    play = Play()
    subscriber, publisher = play.subscriber(), play.publisher()
    play.move(play.others[0])
    for _ in range(50):
        publisher.publish(TOPIC)
        play.run(0.004)
    assert subscriber.attached == play.others[0]
    assert play.tally() == Tally(acknowledged=50, owed=50)


def test_subscribers_hear_of_a_move_with_its_first_publication() -> None:
    play = Play()
    subscriber, publisher = play.subscriber(), play.publisher()
    play.move(play.others[0], then_s=1.0)
    assert subscriber.attached == play.owner
    publisher.publish(TOPIC)
    play.run(0.1)
    assert subscriber.attached == play.others[0]


def test_forwarding_back_ends_when_the_old_server_is_empty() -> None:
    play = Play()
    play.subscriber()
    publisher = play.publisher()
    play.move(play.others[0])
    publisher.publish(TOPIC)
    play.run(0.5)
    late = publisher.publish(TOPIC)
    play.run(0.5)
    assert play.ran_at(late) == [play.others[0]]


def test_the_old_dispatcher_stops_listening_after_its_time() -> None:
    play = Play(brokers=3, timers=Timers(forget_s=1.0))
    first, second = play.others
    play.move(first, then_s=2.0)
    play.move(second, then_s=0.5)
    assert TOPIC in play.world.hosts[first].server.channels
    play.run(1.0)
    assert TOPIC not in play.world.hosts[first].server.channels
    assert TOPIC in play.world.hosts[play.owner].server.channels  # the ring's owner always listens


def test_a_client_forgets_a_topic_it_does_not_use() -> None:
    play = Play(timers=Timers(forget_s=1.0))
    publisher = play.publisher()
    play.move(play.others[0])
    publisher.publish(TOPIC)
    play.run(0.5)
    assert publisher.machine.broker_of(TOPIC) == play.others[0]
    play.run(1.0)
    assert publisher.machine.broker_of(TOPIC) == play.owner


# --- losses without any fault


def _crossing(linger_s: float) -> tuple[Play, Subscriber, Publication]:
    """A message runs at H1 before the SUBSCRIBE; forwarded to H0 it comes there after the UNSUBSCRIBE."""
    play = Play(timers=Timers(linger_s=linger_s))
    h1 = play.others[0]
    play.slow("subscriber 0", h1, AWAY_S)
    play.slow(f"agent {h1}", play.owner, 0.3)
    subscriber, publisher = play.subscriber(), play.publisher()
    play.move(h1)
    publisher.publish(TOPIC)  # tells the subscriber to switch, and the publisher where to
    play.run(AWAY_S / 2)
    return play, subscriber, publisher.publish(TOPIC)


def test_lost_between_subscribe_and_unsubscribe() -> None:
    play, subscriber, message = _crossing(linger_s=0.0)
    assert play.tally() == Tally(acknowledged=2, owed=2, lost=1)
    assert play.ran_at(message) == [play.others[0], play.owner]  # it was forwarded, in vain
    assert not got(subscriber, message)


def test_a_linger_that_is_long_enough_saves_it() -> None:
    play, subscriber, message = _crossing(linger_s=0.5)
    assert play.tally() == Tally(acknowledged=2, owed=2)
    assert got(subscriber, message)


@pytest.mark.parametrize("linger_s", [0.0, 0.5])
def test_lost_because_the_new_dispatcher_has_the_plan_later(linger_s: float) -> None:
    play = Play(timers=Timers(linger_s=linger_s))
    h1 = play.others[0]
    play.slow("subscriber 0", h1, AWAY_S)
    subscriber, publisher = play.subscriber(), play.publisher()
    play.slow(f"agent {h1}", "store", 0.5)
    play.move(h1)
    publisher.publish(TOPIC)
    play.run(AWAY_S / 2)
    message = publisher.publish(TOPIC)
    assert play.tally() == Tally(acknowledged=2, owed=2, lost=1)
    assert play.ran_at(message) == [h1]  # nobody listened there to forward it
    assert not got(subscriber, message)


def test_lost_because_the_old_dispatcher_has_the_plan_later() -> None:
    play = Play(brokers=3)
    h0, h1 = play.others
    publisher = play.publisher()
    play.move(h0)
    publisher.publish(TOPIC)
    play.run(0.5)
    play.slow(f"agent {h0}", "store", 0.8)
    play.move(h1)
    newcomer = play.subscriber()  # the dispatcher of the ring's owner sends it to H1
    assert newcomer.attached == h1
    message = publisher.publish(TOPIC)
    assert play.tally() == Tally(acknowledged=2, owed=1, lost=1)
    assert play.ran_at(message) == [h0]


def test_lost_because_it_arrived_after_the_timer() -> None:
    """The publisher's timer had not run out when it sent; that of D0 had when the message came."""
    play = Play(brokers=3, timers=Timers(forget_s=1.0))
    h0, h1 = play.others
    publisher = play.publisher()
    play.move(h0)
    publisher.publish(TOPIC)
    play.run(0.1)
    publisher.publish(TOPIC)  # at H0, where D0 does not listen: the timer starts here
    play.move(h1, then_s=0.3)
    play.subscriber()  # at H1
    play.slow("publisher 0", h0, 0.5)
    message = publisher.publish(TOPIC)
    assert play.tally() == Tally(acknowledged=3, owed=1, lost=1)
    assert play.ran_at(message) == [h0]


# --- losses with a crash of a dispatcher


def test_lost_while_the_new_dispatcher_is_away() -> None:
    play = Play(timers=Timers(linger_s=0.5))
    h1 = play.others[0]
    play.slow("subscriber 0", h1, AWAY_S)
    subscriber, publisher = play.subscriber(), play.publisher()
    play.move(h1)
    publisher.publish(TOPIC)
    play.run(AWAY_S / 4)
    play.crash(h1)
    play.run(AWAY_S / 4)
    message = publisher.publish(TOPIC)
    assert play.tally() == Tally(acknowledged=2, owed=2, lost=1)
    assert play.ran_at(message) == [h1]
    assert not got(subscriber, message)


def test_lost_while_the_old_dispatcher_is_away() -> None:
    play = Play(timers=Timers(linger_s=0.5))
    subscriber, one, other = play.subscriber(), play.publisher(), play.publisher()
    play.move(play.others[0])
    one.publish(TOPIC)
    play.run(1.0)
    assert subscriber.attached == play.others[0]
    play.crash(play.owner)
    message = other.publish(TOPIC)  # has not heard of the move
    assert play.tally() == Tally(acknowledged=2, owed=2, lost=1)
    assert play.ran_at(message) == [play.owner]


def test_a_dispatcher_that_is_back_takes_up_its_work() -> None:
    play = Play()
    subscriber, one, other = play.subscriber(), play.publisher(), play.publisher()
    play.move(play.others[0])
    one.publish(TOPIC)
    play.run(0.1)
    play.crash(play.owner)
    play.run(0.5)
    message = other.publish(TOPIC)
    assert play.tally() == Tally(acknowledged=2, owed=2)
    assert play.ran_at(message) == [play.owner, play.others[0]]
    assert got(subscriber, message)


# --- order


def test_a_forwarded_message_comes_after_the_next_one() -> None:
    play = Play()
    h1 = play.others[0]
    play.slow(f"agent {play.owner}", h1, 0.3)
    subscriber, one, other = play.subscriber(), play.publisher(), play.publisher()
    play.move(h1)
    one.publish(TOPIC)
    play.run(0.1)
    first = other.publish(TOPIC)  # at H0: forwarded, slowly
    play.run(0.1)
    second = other.publish(TOPIC)  # at H1, directly
    assert play.tally() == Tally(acknowledged=3, owed=3, reordered=1)
    assert [sequence for publisher, sequence in subscriber.received if publisher == first.publisher] == [2, 1]
    assert second.acknowledged_s is not None


def test_timers_are_checked() -> None:
    with pytest.raises(UsageError, match="forget_s"):
        Timers(forget_s=0.0)
