"""Workloads of clients at places: who is where, who publishes and listens, what changes when; and playing them live."""
