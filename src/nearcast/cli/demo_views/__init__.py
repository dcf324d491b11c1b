"""What `nearcast demo` looks like: one module per act, what they share, and the summaries."""
