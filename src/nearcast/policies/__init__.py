"""Policies: pure functions from a snapshot and a plan to a proposal. They need the extra `policies` (NumPy)."""
