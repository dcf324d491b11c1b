"""The office: what is said is stamped and addressed, and what is decided is written down."""

from __future__ import annotations

from parts import COMMITS, TERM, Surroundings, journal_of

from nearcast.core.controller.office import DECISIONS_KEPT, Office, Orders
from nearcast.core.model.journal import LossEntry
from nearcast.core.model.names import ANSWER_CHANNEL, agent_channel
from nearcast.core.model.settings import DEFAULT_TIMING, Timing
from nearcast.core.wire import bus, views


def test_what_an_agent_is_told_says_how_far_the_journal_is() -> None:
    around = Surroundings(journal_of("b1"))
    around.office.tell("b1", 0xA1, bus.Reset(order=1, term=TERM))
    ((channel, payload),) = around.office.outbox
    assert channel == agent_channel("b1", 0xA1)
    assert bus.decode_for_agent(payload) == bus.Reset(1, TERM, journal=(0, COMMITS))


def test_the_position_counts_from_the_last_loss_and_grows_with_every_commit() -> None:
    around = Surroundings(journal_of("b1"))
    around.ledger.write({"loss": LossEntry(0.0, TERM, "")})
    around.commit()
    assert around.office.position == (TERM, COMMITS + 1)


def test_an_answer_goes_to_who_asked() -> None:
    around = Surroundings(journal_of("b1"))
    around.office.reply(around.office.state("ada.17", "no"))
    around.office.reply(bus.Assignment("grace.2", "b1"))
    channels = [channel for channel, _ in around.office.outbox]
    assert channels == [ANSWER_CHANNEL + b"ada", ANSWER_CHANNEL + b"grace"]
    assert around.said()[0] == bus.State("ada.17", leader="c1", term=TERM, version=COMMITS, problem="no")


def test_a_decision_is_kept_with_the_time_of_the_wall_and_logged() -> None:
    around = Surroundings(journal_of("b1"), wall_offset_s=1000.0)
    for number in range(DECISIONS_KEPT + 1):
        around.office.decided(f"decision {number}", now_s=5.0)
    assert len(around.office.decisions) == DECISIONS_KEPT
    assert around.office.decisions[0] == views.Decision(1005.0, "decision 1")
    assert around.office.notes[0] == "decision 0"


def test_orders_of_the_same_term_are_continued() -> None:
    orders = Orders(TERM, 0.3)
    ledger = Surroundings(journal_of("b1")).ledger
    office = Office(ledger, leader="c1", store_url="", cluster="", timing=DEFAULT_TIMING, orders=orders)
    assert office.orders is orders, "a recovery has given some"


def test_orders_are_repeated_as_often_as_the_timers_say() -> None:
    around = Surroundings(journal_of("b1"), Timing(retry_s=0.1))
    for now_s in (0.0, 0.05, 0.11):
        around.office.orders.need("k", "b1", lambda number: bus.Reset(number, TERM), lambda *_: None, now_s)
    assert [order.order for _, order in around.orders()] == [(TERM << 32) + 1, (TERM << 32) + 2]
