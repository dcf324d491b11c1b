"""Experiments: the figures of the papers, reproduced. One module per group of figures."""
