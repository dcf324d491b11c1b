"""Multistage balancing: which gateway serves which subscriber.

After H. Nguyen, M. Y. S. Uddin, N. Venkatasubramanian, "Multistage Adaptive Load Balancing for Big Active Data Publish
Subscribe Systems", DEBS 2019, sections 4-6. A broker is loaded with what it fetches from the data cluster, once per
backend subscription, and with what it delivers, once per frontend subscription.

| paper | here |
|---|---|
| i, j, k | numbers of subscribers, brokers, backend subscriptions |
| y_ik, lambda_k | `Demand.wanted`, `Demand.rates` |
| x_ij | `Assignment.home` |
| n_jk, z_jk | `BrokerLoads.counts`, and whether it is above 0 |
| I_j, O_j, F_j (equations 1-5) | `BrokerLoads.incoming`, `outgoing`, `total` |
| mu, cov (equations 6-8) | `Spread.mean`, `Spread.cov` |
| u_i (line 8) | `Demand.by_subscriber` |
| sim_j (line 10) | `BrokerLoads.similarity` |
| alpha, beta, gamma, theta | `MultistageConfig` |
| NR, RR, RND, LL | `policy.py` |
| Algorithm 1: lines 2-4 (GSH) | `moves.py` |
| Algorithm 1: lines 5-25 (LDM, SDM) | `moves.py` |
| M | `MigrationPlan` |
| the Broker Coordination Service (section 3) | `core/controller/subscribers.py`; it asks through `policy.py` |

Interpretations, where the paper is silent or contradicts itself:
- Line 17 compares the load after the move: the target must not exceed what the source had before it. Then x_ib = 0,
  x_ib' = 1, and the entry is appended to M.
- The loop ends when no subscriber of the broker with the most load has a valid move.
- After a shuffle the loads and the cov are computed again, its plan is kept, and single moves follow if cov is still
  above alpha. In the plan each subscriber then moves once, from where it is to where it ends up.
- SDM's set of candidates, the brokers below the mean, may be empty: such a subscriber has no valid move.
- Of equal loads, similarities or brokers, the lower number goes first. A subscriber never moves to its own broker.
- Only subscribers that are online count and move. Rates are moving averages; the caller computes them with
  `moving_average`.

Deviations:
- If the target would just reach the source's load, the move is valid only if the source ends below what the target had.
  Otherwise two loads would change places forever. So the sorted list of loads gets smaller with each move, and the loop
  ends.
- A subscriber without load is not moved, not even by a shuffle, because that would change nothing.
"""

from nearcast.policies.multistage.loads import Assignment, Demand, MultistageConfig, Scheme, moving_average
from nearcast.policies.multistage.moves import MigrationPlan
from nearcast.policies.multistage.policy import Multistage, MultistageBalancer

__all__ = [
    "Assignment",
    "Demand",
    "MigrationPlan",
    "Multistage",
    "MultistageBalancer",
    "MultistageConfig",
    "Scheme",
    "moving_average",
]
