"""Channels: parameterised queries in Spark SQL, answered for all their subscriptions at once."""
