"""The client of gateways: `nearcast.Subscriber`, and the events it yields."""

from nearcast.core.wire.gateway import Lagging, Missed, Result, TopicGap, TopicMessage

__all__ = ["Lagging", "Missed", "Result", "TopicGap", "TopicMessage"]
