"""Emulated networks: distances and capacities, by a TCP relay that delays, narrows and cuts."""
