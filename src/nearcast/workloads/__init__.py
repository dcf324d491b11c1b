"""Workloads: who subscribes to what and publishes where, second by second."""
