"""Whether a server was asked for in vain: planted cases in which it was, and in which it was not."""

from __future__ import annotations

from nearcast.core.model.placement import Mode, Placement, Plan
from nearcast.core.model.planning import AddBroker, BrokerLoad, Cause, Proposal, Reason, Snapshot, TopicLoad
from nearcast.experiments.checks import Additions, Move, Seen, sufficing_move

REASON = Reason(Cause.HIGH_LOAD, "load_ratio", 0.9, 0.8)


def seen(places: dict[str, tuple[str, ...]], loads: dict[str, float], draining: tuple[str, ...] = ()) -> Seen:
    """Brokers of capacity 100 that carry what their topics give."""
    brokers = sorted({broker for placed in places.values() for broker in placed})
    output = {
        broker: sum(loads[topic] / len(placed) for topic, placed in places.items() if broker in placed)
        for broker in brokers
    }
    snapshot = Snapshot(
        at_s=1.0,
        brokers={
            name: BrokerLoad(capacity_bytes_per_s=100.0, output_bytes_per_s=output[name], draining=name in draining)
            for name in brokers
        },
        topics={topic: TopicLoad(output_bytes_per_s=load) for topic, load in loads.items()},
    )
    modes = {1: Mode.SINGLE}
    plan = {t: Placement(1, modes.get(len(placed), Mode.ALL_SUBSCRIBERS), placed) for t, placed in places.items()}
    return Seen(snapshot, Plan(1, plan))


def test_a_move_that_suffices_is_found() -> None:
    found = sufficing_move(seen({"a": ("x",), "b": ("x",), "c": ("y",)}, {"a": 60, "b": 30, "c": 45}), 0.8)
    assert found == Move("b", "x", "y")  # a would overload y


def test_no_move_suffices_where_the_receiver_would_be_too_high() -> None:
    assert sufficing_move(seen({"a": ("x",), "b": ("x",), "c": ("y",)}, {"a": 60, "b": 30, "c": 55}), 0.8) is None


def test_one_move_cannot_help_two_brokers() -> None:
    places = {"a": ("x",), "b": ("x",), "c": ("y",), "d": ("y",), "e": ("z",)}
    loads = {"a": 60.0, "b": 30.0, "c": 60.0, "d": 30.0, "e": 1.0}
    assert sufficing_move(seen(places, loads), 0.8) is None
    assert sufficing_move(seen(places, {**loads, "d": 10.0}), 0.8) == Move("a", "x", "z")


def test_a_draining_broker_receives_nothing() -> None:
    places, loads = {"a": ("x",), "b": ("x",), "c": ("y",)}, {"a": 60.0, "b": 30.0, "c": 1.0}
    assert sufficing_move(seen(places, loads), 0.8) is not None
    assert sufficing_move(seen(places, loads, draining=("y",)), 0.8) is None


def test_a_replicas_share_may_move() -> None:
    found = sufficing_move(seen({"a": ("x", "y"), "b": ("x",), "c": ("z",)}, {"a": 60, "b": 55, "c": 45}), 0.8)
    assert found == Move("a", "x", "z")


def test_what_a_policy_saw_is_kept_when_it_asks_for_a_broker() -> None:
    class Asks:
        name = "asks"
        wants = False

        def propose(self, snapshot: Snapshot, plan: Plan) -> Proposal:
            return Proposal(self.name, (AddBroker(REASON),) if self.wants else ())

    policy, there = Asks(), seen({"a": ("x",)}, {"a": 90})
    additions = Additions(policy)
    assert additions.propose(there.snapshot, there.plan).changes == ()
    policy.wants = True
    assert additions.propose(there.snapshot, there.plan).changes == (AddBroker(REASON),)
    assert additions.name == "asks"
    assert additions.seen == [there]
