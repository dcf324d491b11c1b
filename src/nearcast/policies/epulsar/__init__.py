"""ePulsar: keeps every topic within its latency bound, wherever its clients are, and brokers below their thresholds.

After H. Gupta, T. C. Landle, U. Ramachandran, "ePulsar: Control Plane for Publish-Subscribe Systems on Geo-Distributed
Edge Infrastructure", SEC 2021, sections 3.2 to 3.4 and Algorithm 1.

| paper | here |
|---|---|
| t, P(t), C(t) | a topic, its publishers, its subscribers |
| L_th(t) | `Snapshot.bounds` |
| E(t) | `Candidate.worst_s` of the broker it is on |
| NC(b), centroids, W(t) | `BrokerLoad.coordinate`, `Centroids` |
| W(t, b), B(t) | `CentroidReach.ranked`, and the part of it within the bound |
| R_out(t) | `Draft.rate` |
| R_out^th | `BrokerLoad.messages_high_per_s` of a profiled broker, else `EPulsarConfig.messages_high_per_s` |
| P_0, P | the plan, `Draft` |
| R | the proposal |
| lines 1 to 11 | `_Session._place` in `policy.py` |
| lines 15 to 17 | `Today.violated` in `reach.py` |
| lines 18 to 21 | `overload.py` |
| can_host | `Draft.can_host` |

Interpretations, where the paper is silent or would not work:
- The plan is copied before it is changed, or line 25 would compare it with itself.
- Line 20 counts the topics that were chosen in lines 15 to 17.
- R_out(t) is in and out, and orders the topics. R_out^th limits the output of a broker alone.
- Above 85 % of CPU or network, a broker gives topics away until its rate is at most rate x 0.85 / utilisation. Memory
  does not follow the rate. A broker whose memory is full gets no topics, and is reported.
- The load of a topic is taken off its broker before `can_host`, and that broker is a candidate like the others.
- Topics with equally many candidates are placed by decreasing rate, then by name.
- If no broker keeps the bound, all are candidates, as in the paper. Such a topic is placed last, and moves only if that
  saves `gain_min` of today's latency, or its broker is overloaded or goes away. Otherwise it would flap. Today's
  latency and the predicted one are by the same measure: with centroids, W(t, b) of both.
- A topic without publishers or without subscribers has no E(t). It misses no bound, and may be anywhere.
- A bound may name a percentile (`reach.py`).
- A topic on several brokers is reported and not moved. A topic that settles stays, and its load counts.
- A topic under a log with a quorum goes only to brokers with enough replicas.

Deviations:
- The default ranks by the exact worst latency over the best eight brokers, which agents report (`Ranking.TOP8`). On
  real latencies W(t, b) is far above it, and then most bounds look as if no broker kept them.
- Topics without a bound, or without known latencies, also leave overloaded brokers: to the nearest broker with room if
  distances are known, else to the one with the least load.
- If a topic chosen in line 20 finds no room, the next ones are tried. Otherwise its broker would stay overloaded.
- Topics leave a broker that is being removed, and nothing goes there.
- If brokers stay overloaded and more can be rented, one is requested.
"""

from nearcast.policies.epulsar.config import EPulsarConfig, Ranking
from nearcast.policies.epulsar.explain import explain
from nearcast.policies.epulsar.policy import EPulsar

__all__ = ["EPulsar", "EPulsarConfig", "Ranking", "explain"]
