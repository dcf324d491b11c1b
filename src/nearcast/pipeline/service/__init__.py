"""The data cluster process: its REST API, and what runs feeds and channels."""
