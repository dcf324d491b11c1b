"""The catalogue of the data cluster: what exists and what was committed, in one SQLite file."""
