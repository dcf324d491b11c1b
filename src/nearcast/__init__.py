"""Publish/subscribe over ordinary Valkey and Redis servers, placed near the people who use it."""

from nearcast.core.mailbox import Overflow
from nearcast.core.message import Event, Gap, Interrupted, Message
from nearcast.core.news import State, StateChange
from nearcast.core.placement import Mode, Placement
from nearcast.core.settings import Limits, Timing
from nearcast.runtime.client import Client, connect
from nearcast.runtime.subscription import Subscription

__all__ = [
    "Client",
    "Event",
    "Gap",
    "Interrupted",
    "Limits",
    "Message",
    "Mode",
    "Overflow",
    "Placement",
    "State",
    "StateChange",
    "Subscription",
    "Timing",
    "connect",
]
