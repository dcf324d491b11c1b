"""Experiments: the figures of the papers, run again. One file per figure group."""
