"""The routes of the REST API, a file for each kind of thing."""
