"""The data pipeline: everything that runs on Spark. PySpark is imported here and nowhere else."""
