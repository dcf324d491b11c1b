"""The names nearcast uses on the store's server. PROTOCOL "Names on a server" says what each is for."""

from __future__ import annotations

# Channels of the bus.
AGENT_CHANNEL = b"nc:a:"  # + broker + ":" + agent
GATEWAY_CHANNEL = b"nc:g:"  # + broker
CONTROLLER_CHANNEL = b"nc:k"
PROVIDER_CHANNEL = b"nc:rent"
ANSWER_CHANNEL = b"nc:q:"  # + who asked

# The controllers' journal.
ENTRIES_KEY = "nc:store"
VERSION_KEY = "nc:store:version"
LEADER_KEY = "nc:store:leader"
TERM_KEY = "nc:store:term"

# Telemetry and feeds.
REPORT_STREAM = b"nc:reports"
FEEDS = "nc:feeds"  # hash: feed -> JSON {"topic", "stream"}; the data cluster writes it, collectors follow it
FEED_PREFIX = "nc:feed:"  # + feed: its stream, and the beginning of its other keys

# Gateways and their users, and the data cluster they ask.
GATEWAYS_KEY = b"nc:gateways"
USER_KEY = "nc:u:"  # + user
HOLDERS_KEY = "nc:f:"  # + broker: users with subscriptions there
KEYS_KEY = "nc:keys"  # by which tokens are signed
HOURS_KEY = "nc:hours"  # counted, by which users are forgotten
DATA_KEY = "nc:data"  # where the data cluster answers
