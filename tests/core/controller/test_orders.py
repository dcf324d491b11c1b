"""Orders: sent again until answered, and deaf to answers that are not for them."""

from __future__ import annotations

from functools import partial

import pytest

from nearcast.core.controller import office
from nearcast.core.controller.office import Orders
from nearcast.core.wire.bus import Answer, Reset


class Sender:
    """Orders of one leader, and the answers that came."""

    def __init__(self, term: int = 3) -> None:
        self.orders = Orders(term, retry_s=0.3)
        self.answers: list[tuple[Answer, float]] = []
        self._term = term

    def need(self, key: str, now_s: float, broker: str = "b1") -> int | None:
        """The number of the order that was sent, if one was."""
        make = partial(Reset, term=self._term)
        self.orders.need(key, broker, make, lambda answer, at_s: self.answers.append((answer, at_s)), now_s)
        sent, self.orders.outgoing[:] = list(self.orders.outgoing), []
        return sent[0][1].order if sent else None

    def answer(self, order: int | None, now_s: float, broker: str = "b1") -> None:
        assert order is not None
        self.orders.answered(Answer(broker, order), now_s)


def test_a_need_is_sent_once_and_again_after_the_retry_time() -> None:
    sender = Sender()
    sent = [sender.need("reset", now_s) is not None for now_s in (0.0, 0.1, 0.29, 0.31, 0.4, 0.62)]
    assert sent == [True, False, False, True, False, True]


def test_two_needs_do_not_wait_for_each_other() -> None:
    sender = Sender()
    assert sender.need("one", 0.0) != sender.need("two", 0.0)


@pytest.mark.parametrize("late", [False, True], ids=["the repeated order", "the first order"])
def test_an_answer_to_either_sending_counts(late: bool) -> None:
    sender = Sender()
    first, second = sender.need("reset", 0.0), sender.need("reset", 0.4)
    sender.answer(first if late else second, 0.5)
    assert [at_s for _, at_s in sender.answers] == [0.5]


def test_a_second_answer_is_ignored() -> None:
    sender = Sender()
    order = sender.need("reset", 0.0)
    sender.answer(order, 0.1)
    sender.answer(order, 0.2)
    assert len(sender.answers) == 1


def test_after_the_answer_the_same_need_is_sent_at_once() -> None:
    sender = Sender()
    sender.answer(sender.need("reset", 0.0), 0.1)
    assert sender.need("reset", 0.11) is not None


def test_an_answer_to_an_order_of_another_term_is_ignored() -> None:
    former, sender = Sender(term=2), Sender(term=3)
    old = former.need("reset", 0.0)
    assert old != sender.need("reset", 0.0)
    sender.answer(old, 0.1)
    assert sender.answers == []


def test_an_answer_of_another_broker_is_ignored() -> None:
    sender = Sender()
    sender.answer(sender.need("reset", 0.0), 0.1, broker="b2")
    assert sender.answers == []


def test_orders_nobody_answers_are_forgotten_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(office, "ORDERS_MAX", 3)
    sender = Sender()
    numbers = [sender.need(f"need {number}", 0.0) for number in range(4)]
    for order in numbers:
        sender.answer(order, 0.1)
    assert [answer.order for answer, _ in sender.answers] == numbers[1:]
    assert sender.need("need 0", 0.1) is not None
