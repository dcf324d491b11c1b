"""Forgetting: a client goes round what it keeps of topics, and lets go of what nobody uses (PROTOCOL "How topics end").

A round begins every T_idle and looks at some topics in each tick. A topic on which nothing was published between two
looks ends: its control channel is given back, so that its broker can end the record. If it is used again, its numbers
go on above all that were ever used for a topic that has ended, and the first message says that nothing is missing
before it. So it does not matter what subscribers still know of the publisher.

A line of a publisher is forgotten when nothing came of it for `LINES_ROUNDS` rounds. By then its publisher sends no
message again that was delivered before: a message that is not acknowledged for two rounds fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearcast.core.client import Client

LINES_ROUNDS = 4  # a publisher repeats for two rounds; twice that, so that neither clocks nor the network need be exact


class Forgetting:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._begins_s: float | None = None
        self._rounds = 0
        self._looks: Iterator[None] = iter(())

    def tick(self, now_s: float) -> None:
        looked = sum(1 for _ in islice(self._looks, self._client.limits.attended))
        next_s = now_s + self._client.timing.idle_s
        if self._begins_s is None or self._begins_s > next_s:  # the latter: the cluster goes by a shorter T_idle now
            self._begins_s = next_s
        elif not looked and now_s >= self._begins_s:
            # From now, not from when it was due: time in which we did not run is nobody's silence.
            self._begins_s = next_s
            self._rounds += 1
            self._looks = self._look_around()

    def make_room(self) -> None:
        """There are as many topics as there may be: the oldest one on which nothing waits ends before its time."""
        oldest = islice(self._client.outflows.values(), self._client.limits.attended)
        outflow = next((outflow for outflow in oldest if not outflow.unacknowledged), None)
        if outflow is not None:
            self._client.end_outflow(outflow)

    def _look_around(self) -> Iterator[None]:
        """One look at a time, so that many topics are not looked at in one go."""
        client = self._client
        for outflow in list(client.outflows.values()):
            if client.outflows.get(outflow.topic) is outflow and outflow.unused():
                client.end_outflow(outflow)
            yield
        if self._rounds % LINES_ROUNDS:
            return
        for inflow in list(client.inflows.values()):
            if inflow.reception is not None and inflow.reception.forget_silent():
                inflow.reception = None
            yield
        for pattern in list(client.patterns.values()):
            for topic in pattern.topics():
                pattern.forget_silent(topic)
                yield
