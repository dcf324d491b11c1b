"""The controller machine and its parts: who leads, and what a leader does."""
