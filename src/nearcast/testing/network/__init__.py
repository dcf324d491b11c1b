"""Emulated networks: distances and capacities, by a TCP relay that delays, limits and cuts connections."""
