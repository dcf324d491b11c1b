"""Plans: what differs between two, and what is wrong with one."""

from __future__ import annotations

from nearcast.core.model.placement import Change, Mode, Placement, Plan, single

BOTH = Placement(3, Mode.ALL_PUBLISHERS, ("b1", "b2"))


def test_a_plan_does_not_differ_from_itself() -> None:
    plan = Plan(1, {"a": single(1, "b1", 0), "b": BOTH})
    assert plan.diff(plan) == []


def test_epochs_alone_are_no_change() -> None:
    assert Plan(1, {"a": single(1, "b1", 0)}).diff(Plan(2, {"a": single(9, "b1", 5)})) == []


def test_a_diff_names_what_moves_comes_and_goes_in_order_of_topics() -> None:
    one, two = single(1, "b1", 0), single(2, "b2", 0)
    before = Plan(1, {"moves": one, "goes": one, "stays": one})
    after = Plan(2, {"stays": one, "comes": two, "moves": two})
    assert before.diff(after) == [Change("comes", None, two), Change("goes", one, None), Change("moves", one, two)]


def test_another_mode_on_the_same_brokers_is_a_change() -> None:
    other = Placement(4, Mode.ALL_SUBSCRIBERS, BOTH.brokers)
    assert Plan(1, {"a": BOTH}).diff(Plan(2, {"a": other})) == [Change("a", BOTH, other)]


def test_a_good_plan_has_no_faults() -> None:
    assert Plan(1, {"a": single(1, "b1", 0), "b": BOTH}).validate(["b1", "b2"]) == []


def test_every_fault_is_one_sentence_with_its_topic() -> None:
    plan = Plan(1, {"z": single(1, "b9", 0), "a": Placement(1, Mode.SINGLE, ("b1", "b1"))})
    assert plan.validate(["b1", "b2"]) == [
        "topic 'a': names a broker twice",
        "topic 'a': mode single takes one broker; choose all_subscribers or all_publishers for several",
        "topic 'z': unknown broker 'b9'; the cluster has: b1, b2",
    ]
