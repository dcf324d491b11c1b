"""Network coordinates, and estimates of the latency between any client and any broker. Pure.

Two ways to know a latency that nobody measured:

- `vivaldi.py`: every node holds a point in space, and the distance of two points estimates their round trip. It needs
  no NumPy and no knowledge of the whole. It is the papers' way, and our baseline.
- `estimator.py`: the agents know all round trips between brokers, and a client has measured k brokers. A client is
  then described by the brokers that see the network as it does. It needs NumPy, and is far more exact.

Sources:

- F. Dabek, R. Cox, F. Kaashoek, R. Morris, "Vivaldi: A Decentralized Network Coordinate System", SIGCOMM 2004.
- J. Ledlie, P. Gardner, M. Seltzer, "Network Coordinates in the Wild", NSDI 2007: the latency filter, neighbour decay,
  gravity.
- S. Lee, Z.-L. Zhang, S. Sahu, D. Saha, "On Suitability of Euclidean Embedding for Host-based Network Coordinate
  Systems", IEEE/ACM Transactions on Networking 18(1), 2010: the adjustment.
- H. Gupta, T. C. Landle, U. Ramachandran, "ePulsar: Control Plane for Publish-Subscribe Systems on Geo-Distributed Edge
  Infrastructure", SEC 2021: what topics do with it.
- HashiCorp Serf, package `coordinate`: the values of the preset `SERF`, and the bounds that our tests keep.

| papers | here |
|---|---|
| x_i, h_i | `Coordinate.position_s`, `Coordinate.height_s` |
| w_i, e_i (error of a node) | `Coordinate.error` |
| c_e, c_c (Vivaldi, figure 3) | `VivaldiSettings.error_gain`, `VivaldiSettings.force_gain` |
| rho (Ledlie) | `VivaldiSettings.gravity_s` |
| e_x (Lee, IV) | `Coordinate.adjustment_s` |
| P(t), C(t), E(t), W(t), W(t, b) (ePulsar, table 1) | `topics.py` |

Times are in seconds. The estimator works in any unit, because it only looks at ratios; the benchmark gives it
milliseconds.
"""
