"""From messages in logs to Parquet files of datasets: what the tasks of the feeds' query do, in Python and Arrow."""
