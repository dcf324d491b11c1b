"""The acts of `nearcast demo`."""
