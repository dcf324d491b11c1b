"""The message-level simulator: runs the core's machines under virtual time with seeded delays, cuts and crashes."""
