"""Where records come from: data sources written with Spark's Python Data Source API."""
