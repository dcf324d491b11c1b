"""Dynamoth: balances load over brokers, replicates hot topics, adds and removes brokers.

After J. Gascon-Samson, F.-P. Garcia, B. Kemme, J. Kienzle, "Dynamoth: A Scalable Pub/Sub Middleware for
Latency-Constrained Applications in the Cloud", ICDCS 2015, section III. Figures marked "code" are the constants of the
authors' program.

| paper | here |
|---|---|
| H_i, pub/sub server | a broker |
| c, channel | a topic |
| M_i, T_i | `Loads.output`, `Loads.capacity` |
| LR_i = M_i / T_i (equation 1); estimated | `Draft.ratio` |
| LR^high, LR^safe | `lr_high`, `lr_safe` |
| the low-load threshold | `lr_low` |
| P_ratio, S_ratio | `p_ratio`, `s_ratio` in `replication.py` |
| AllSubs_threshold, Publication_threshold | `all_subs_threshold`, `publication_threshold` |
| AllPubs_threshold, Subscriber_threshold | `all_pubs_threshold`, `subscriber_threshold` |
| P* | `Draft` |
| Algorithm 1 | `replication.py`: whether, how many, which brokers |
| Algorithm 2 | `rebalancing.py` |
| low-load rebalancing | `scaling.py` |
| T_wait | kept by the caller: the controller's planner, the flow simulator |

Interpretations, where the paper is silent or does not terminate:
- Lines 4 and 10 of Algorithm 2 use the estimated ratios; with the measured ones it would never end.
- The number of brokers is rounded up, at least 2 and at most all there are. Less than one subscriber, and less than one
  publication per second, count as one; a topic without subscribers is not replicated.
- If publications and subscribers are both above their thresholds, the mode is all_subscribers, with enough brokers to
  bring the publications of each below `publication_threshold`.

Deviations:
- A topic that is too large for one broker, above `lr_safe` of the mean capacity, is replicated whatever its ratios are,
  and a replicated topic gets at least the brokers its bandwidth needs. Otherwise no number of brokers could help.
- A topic gets so few brokers that each has at least the threshold's amount of publications or subscribers, and no more
  than its mode can divide it into: a publisher writes to one broker, a subscriber reads from one.
- A topic stays replicated until it is below `collapse_share` of the threshold that caused the replication, and a
  replication that would overload a broker is postponed. Otherwise a topic at its threshold would flap.
- Algorithm 2 moves the busiest topic that fits on the receiver; the paper takes the busiest, which may overload it.
  Topics on one broker are moved before shares of replicated ones. The receiver is filled up to `lr_safe` if possible,
  or to the mean of a cluster that is above it.
- If that does not bring every ratio below `lr_high`, the brokers at or above it are levelled (`rebalancing.py`), and a
  broker is rented only if no single move would do (`scaling.py`). If none can be rented, levelling keeps the cluster
  usable up to its capacity.
- A broker that has just joined is given load at once (`rebalancing.py`).
- A removal is started only if all topics of the broker fit on the others below `lr_safe`, and cancelled when the global
  ratio rises by `level_gap` above `lr_low`, when they no longer fit, or when another broker needs the room.
"""

from nearcast.policies.dynamoth.draft import DynamothConfig
from nearcast.policies.dynamoth.policy import Dynamoth

__all__ = ["Dynamoth", "DynamothConfig"]
