"""What is said, and how: links, frames, the bus, effects, and the backend for Valkey and Redis."""
