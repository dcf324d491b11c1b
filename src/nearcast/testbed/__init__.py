"""Local clusters for tests, demos and benchmarks: real servers, emulated sites."""
