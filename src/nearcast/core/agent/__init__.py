"""The agent machine and its parts: the claim on its server, records, the load."""
