"""Network distances: pure; NumPy."""
