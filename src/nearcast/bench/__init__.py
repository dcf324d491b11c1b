"""Benchmarks: how fast nearcast is on this machine, compared with alternatives."""
