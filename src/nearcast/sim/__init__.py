"""The simulator: runs the core's effects under virtual time with seeded delays, drops and crashes."""
