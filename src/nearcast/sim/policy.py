"""A policy whose proposals cannot be done whole: one more broker, and a topic on a broker that does not exist.

A controller must refuse all of it. What it is asked, and how its answer comes back, is as with a real policy.
"""

from __future__ import annotations

from nearcast.core.placement import Mode
from nearcast.core.planner import Planning
from nearcast.core.proposal import AddBroker, Cause, PlaceTopic, Proposal, Reason

PLANNING = Planning(check_s=0.5, wait_s=0.5, brokers_max=9)
THINKS_S = 0.05

_REASON = Reason(Cause.HIGH_LOAD, "load ratio", 1.0, 0.9)
HALF_WRONG = Proposal(
    "half wrong", (AddBroker(_REASON), PlaceTopic("topic-0", Mode.SINGLE, ("nobody",), _REASON)), problem=""
)
