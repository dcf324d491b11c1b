"""Jobs: read, transform, write, and nothing else."""
