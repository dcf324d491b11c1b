"""Pure functions from DataFrame to DataFrame, each ending in a select of its schema."""
