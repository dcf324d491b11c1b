"""Jobs: they read, transform and write data, and do nothing else."""
