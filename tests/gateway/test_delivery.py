"""Delivery: every execution once, in order, whatever happens to notifications, sessions and gateways."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from nearcast.core.wire.gateway import Missed, Result, decode_for_subscriber, encode
from nearcast.gateway.session import Delivery, DeliveryState, Session, Step
from nearcast.gateway.settings import GatewaySettings
from nearcast.subscriber.transport import Progress

SUBSCRIPTION, CHANNEL = "near-1", "near"
BACK = 1000
LIST_LIMIT = 3
TINY = GatewaySettings(outbox_frames=2)


def live(position: int = 0) -> Delivery:
    delivery = Delivery(SUBSCRIPTION, CHANNEL, from_execution=1, cursor=position)
    assert delivery.list_after() == position
    assert delivery.listed([], position, 1, BACK) == Step(None, ())
    assert delivery.state is DeliveryState.LIVE
    return delivery


def test_a_new_delivery_asks_after_the_cursor_or_where_the_subscription_began() -> None:
    assert Delivery(SUBSCRIPTION, CHANNEL, from_execution=5, cursor=0).list_after() == 4
    assert Delivery(SUBSCRIPTION, CHANNEL, from_execution=5, cursor=9).list_after() == 9


def test_live_it_takes_what_is_new_and_drops_what_is_not() -> None:
    delivery = live(3)
    assert delivery.list_after() is None
    assert not delivery.notified(3)
    assert delivery.notified(5)
    delivery.handed_over(5)
    assert not delivery.notified(5)
    assert not delivery.notified(4)


def test_what_is_notified_while_it_catches_up_is_only_remembered_and_keeps_it_from_going_live() -> None:
    delivery = Delivery(SUBSCRIPTION, CHANNEL, 1, 0)
    assert delivery.list_after() == 0
    assert not delivery.notified(4)
    assert delivery.listed([], 3, 1, BACK) == Step(None, ())
    assert delivery.state is DeliveryState.CATCHING_UP
    assert delivery.list_after() == 3
    assert delivery.listed([4], 4, 1, BACK) == Step(None, (4,))
    delivery.handed_over(4)
    delivery.list_after()
    delivery.listed([], 4, 1, BACK)
    assert delivery.state is DeliveryState.LIVE


def test_a_list_asked_for_before_notifications_were_lost_proves_nothing() -> None:
    delivery = Delivery(SUBSCRIPTION, CHANNEL, 1, 0)
    delivery.list_after()
    delivery.lost_touch()
    delivery.listed([], 0, 1, BACK)
    assert delivery.list_after() == 0


def test_what_is_no_longer_kept_is_told_once() -> None:
    delivery = Delivery(SUBSCRIPTION, CHANNEL, 1, 2)
    assert delivery.listed([8, 9], 9, 6, BACK) == Step((2, 5), (8, 9))
    assert delivery.position == 5


def test_what_is_too_far_back_is_told_if_there_was_anything() -> None:
    far = Delivery(SUBSCRIPTION, CHANNEL, 1, 0)
    assert far.listed([10, 95, 99], 100, 1, back=10) == Step((0, 90), (95, 99))
    quiet = Delivery(SUBSCRIPTION, CHANNEL, 1, 0)
    assert quiet.listed([95, 99], 100, 1, back=10) == Step(None, (95, 99))


class OneSession:
    """A session at a gateway, with the questions and fetches that are on their way."""

    def __init__(self, gateway: int, from_execution: int, cursor: int) -> None:
        self.gateway = gateway
        self.delivery = Delivery(SUBSCRIPTION, CHANNEL, from_execution, cursor)
        self.session = Session(TINY, "", lambda: None)
        self.session.deliveries[SUBSCRIPTION] = self.delivery
        self.answer: tuple[list[int], int] | None = None  # a list on its way
        self.due: list[int] = []  # listed, to be handed over one by one
        self.fetching: int | None = None  # notified, to be handed over when fetched


class Subscribed:
    """Two gateways, one subscriber, who may have a session at each, as during a move. `which` picks one of two."""

    def __init__(self) -> None:
        self.committed = 2
        self.with_results = [1, 2]
        self.from_execution = 3
        self.queues: list[list[int]] = [[], []]  # notifications on their way to each gateway
        self.touch_lost = [False, False]
        self.sessions: list[OneSession] = []
        self.progress = Progress()
        self.stored_cursor = 0
        self.received: list[int] = []

    def commit(self, which: int) -> None:
        self.committed += 1
        self.with_results.append(self.committed)
        for queue in self.queues:
            queue.append(self.committed)

    def commit_nothing(self, which: int) -> None:
        self.committed += 1

    # --- sessions

    def login(self, which: int) -> None:
        if len(self.sessions) < 2:
            cursor = max(self.stored_cursor, self.progress.cursors.get(SUBSCRIPTION, 0))
            self.sessions.append(OneSession(which, self.from_execution, cursor))

    def login_of_a_client_that_forgot(self, which: int) -> None:
        if len(self.sessions) < 2:
            self.sessions.append(OneSession(which, self.from_execution, self.stored_cursor))

    def disconnect(self, which: int) -> None:
        """What the outbox held is lost."""
        if which < len(self.sessions):
            del self.sessions[which]

    def take(self, which: int) -> None:
        for one in self.sessions[which : which + 1]:
            while (taken := one.session.take()) is not None:
                frame = decode_for_subscriber(taken)
                assert not isinstance(frame, Missed)
                if isinstance(frame, Result) and self.progress.is_new(frame):
                    self.received.append(frame.execution)

    def acknowledge(self, which: int) -> None:
        self.stored_cursor = max(self.stored_cursor, self.progress.cursors.get(SUBSCRIPTION, 0))

    # --- notifications

    def notify(self, which: int) -> None:
        """Not before the one before is fetched: a gateway takes them one after the other."""
        if self.queues[which] and not self.touch_lost[which] and not self._fetching(which):
            self._notified(which, self.queues[which].pop(0))

    def notify_again(self, which: int) -> None:
        told = [execution for execution in self.with_results if execution not in self.queues[which]]
        if told and not self.touch_lost[which] and not self._fetching(which):
            self._notified(which, told[-1])

    def _fetching(self, gateway: int) -> bool:
        return any(one.fetching is not None for one in self.sessions if one.gateway == gateway)

    def _notified(self, gateway: int, execution: int) -> None:
        for one in self.sessions:
            if one.gateway == gateway and one.delivery.notified(execution):
                one.fetching = execution

    def fetch(self, which: int) -> None:
        for one in self.sessions[which : which + 1]:
            execution, one.fetching = one.fetching, None
            if execution is not None and one.delivery.is_due(execution):
                self._hand_over(one, execution)

    def fail_to_fetch(self, which: int) -> None:
        for one in self.sessions[which : which + 1]:
            if one.fetching is not None:
                one.fetching = None
                one.delivery.lost_touch()

    def lose_notifications(self, which: int) -> None:
        self.touch_lost[which] = True

    def new_cursor(self, which: int) -> None:
        """From here on notifications come again; the gateway knows that some may have been lost."""
        if self.touch_lost[which]:
            self.queues[which].clear()
            self.touch_lost[which] = False
            for one in self.sessions:
                if one.gateway == which:
                    one.delivery.lost_touch()

    # --- catching up

    def ask_for_list(self, which: int) -> None:
        for one in self.sessions[which : which + 1]:
            if one.answer is None and not one.due and (after := one.delivery.list_after()) is not None:
                found = [execution for execution in self.with_results if execution > after]
                one.answer = (found[:LIST_LIMIT], self.committed)

    def list_comes(self, which: int) -> None:
        for one in self.sessions[which : which + 1]:
            if one.answer is not None:
                (found, upto), one.answer = one.answer, None
                one.due = list(one.delivery.listed(found, upto, 1, BACK).executions)

    def hand_over_listed(self, which: int) -> None:
        for one in self.sessions[which : which + 1]:
            if one.due and not self._hand_over(one, one.due.pop(0)):
                one.due.clear()

    def catch_up(self, which: int) -> None:
        for _ in range(2 + 2 * len(self.with_results)):
            self.ask_for_list(which)
            self.list_comes(which)
            for _ in range(LIST_LIMIT):
                self.hand_over_listed(which)
            self.take(which)

    def commit_during_a_list(self, which: int) -> None:
        """Rare among single steps: what is notified is not in the list that is on its way."""
        self._log_in_alone_and_ask(which)
        self.commit(which)
        for _ in range(len(self.queues[which])):
            self.notify(which)
        self.list_comes(0)

    def lose_during_a_list(self, which: int) -> None:
        """Rare among single steps: what was lost is not in the list that is on its way."""
        self._log_in_alone_and_ask(which)
        self.commit(which)
        self.lose_notifications(which)
        self.new_cursor(which)
        self.list_comes(0)

    def _log_in_alone_and_ask(self, gateway: int) -> None:
        """Caught up before, so that the list is empty; alone, so that no other session makes up for this one."""
        self.sessions.clear()
        self.login(gateway)
        self.catch_up(0)
        self.acknowledge(0)
        self.sessions.clear()
        self.login(gateway)
        self.ask_for_list(0)

    def _hand_over(self, one: OneSession, execution: int) -> bool:
        frame = encode(Result(SUBSCRIPTION, CHANNEL, execution, []))
        return one.session.deliver(one.delivery, execution, frame)

    def settle(self) -> None:
        """Nothing is lost any more, and everything on its way arrives."""
        for gateway in (0, 1):
            self.new_cursor(gateway)
        if not self.sessions:
            self.login(0)
        for _ in range(len(self.with_results) + 2):
            for which in (0, 1):
                self.take(which)
                self.fetch(which)
                self.notify(which)
                self.catch_up(which)


ACTIONS = [
    *(Subscribed.commit, Subscribed.commit, Subscribed.commit_nothing),
    *(Subscribed.login, Subscribed.login_of_a_client_that_forgot, Subscribed.disconnect),
    *(Subscribed.take, Subscribed.acknowledge),
    *(Subscribed.notify, Subscribed.notify, Subscribed.notify_again, Subscribed.fetch, Subscribed.fail_to_fetch),
    *(Subscribed.lose_notifications, Subscribed.new_cursor),
    *(Subscribed.ask_for_list, Subscribed.list_comes, Subscribed.hand_over_listed, Subscribed.catch_up),
    *(Subscribed.commit_during_a_list, Subscribed.lose_during_a_list),
]


@settings(max_examples=400)
@given(st.lists(st.tuples(st.sampled_from(ACTIONS), st.sampled_from([0, 0, 1])), min_size=10, max_size=60))
def test_each_result_comes_once_and_in_order(history: list[tuple[Callable[[Subscribed, int], None], int]]) -> None:
    world = Subscribed()
    world.login(0)
    world.catch_up(0)
    for action, which in history:
        action(world, which)
    world.settle()
    assert world.received == [execution for execution in world.with_results if execution >= world.from_execution]
    assert all(one.delivery.state is DeliveryState.LIVE for one in world.sessions)
