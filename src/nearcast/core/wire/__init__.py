"""What is sent, and how: links, frames, the bus, effects, and the backend for Valkey and Redis."""
