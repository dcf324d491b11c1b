"""Profiling finds how many messages per second a broker may deliver before its latency suffers (ePulsar, section 5.4).

As in the paper, topics, publishers, subscribers, message size and rate are varied, the rank correlation of each with
the 95th percentile of latency is computed, and a threshold R_out^th is set on the rate of delivered messages.

Messages are published and heard on private channels by the bare connections of a calibration, not by the client
library. That would do more work per message than the server itself, and so profile itself.
"""
