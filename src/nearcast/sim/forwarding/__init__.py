"""Dynamoth's reconfiguration (paper, section IV) as a second protocol on the same simulator, to compare with ours.

While clients move, each when it hears about the move, dispatchers next to the servers forward messages between the
topic's old and new server. This is safe if messages between servers are faster than those of clients, and if no
dispatcher fails. Otherwise acknowledged messages are lost. H0 is the old server, H1 the new one, D0 and D1 are their
dispatchers, and S is a subscriber that stays subscribed all the time:

crossing   a message runs at H1 before the SUBSCRIBE of S. D1 forwards it to H0, where it arrives after the UNSUBSCRIBE
           of S. Nothing orders the two paths, D1 to H0 and H1 to S to H0.
skew       the plan reaches one dispatcher earlier than the other. D0 has it and sends a publisher to H1, where D1 does
           not listen yet: S, still at H0, misses what runs at H1. Or another dispatcher has it and sends a new
           subscriber to H1, while D0 does not listen yet: what runs at H0 is not forwarded.
timer      D0 stops listening when its timer ends, "because at this time no client has the outdated information". But a
           publication sent before its publisher's timer ended can arrive after D0's timer has ended.
crash      while D1 is down, nothing is forwarded from H1 to subscribers still at H0; while D0 is down, nothing from H0
           to those at H1. A server keeps no messages, so a dispatcher that comes back cannot make up for it.

A message forwarded from H0 can also arrive at H1 after the publisher's next message, which went there directly:
publisher order is not kept. `tests/sim/test_forwarding.py` shows each of these.

Only placements on a single broker are covered: the paper gives no details for replicated topics.
"""
