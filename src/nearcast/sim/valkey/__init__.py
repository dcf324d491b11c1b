"""A Valkey server in memory, for the simulator. A conformance test compares it with a real one, byte by byte."""
