"""Benchmarks: how fast nearcast is on this machine, beside what else there is."""
