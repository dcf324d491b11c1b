"""The `nearcast` command: one file per subcommand, tables for people and JSON for programs."""
