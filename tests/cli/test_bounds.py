"""What `nearcast topic show` says of a topic's clients."""

from __future__ import annotations

from nearcast.cli.bounds import distance_row, spread_row
from nearcast.core.model.bounds import Bound
from nearcast.core.model.distances import Candidate, Spread, TopicDistances

HERE = Candidate("b1", 0.010, 0.025, 0.0304)


def test_a_topics_row_says_how_far_and_where_its_clients_are() -> None:
    publishers, subscribers = Spread(1, "b1", 1), Spread(9, "b2", 4)
    found = TopicDistances(HERE, publishers=publishers, subscribers=subscribers)
    assert distance_row(found, Bound(0.04)) == ("35.0", "30.4", "40 ms")
    assert spread_row(found) == ("1 of 1 near b1", "4 of 9 near b2")


def test_what_is_not_known_is_a_dash() -> None:
    assert distance_row(None, None) == ("-", "-", "-")
    assert spread_row(None) == spread_row(TopicDistances(HERE)) == ("-", "-")
