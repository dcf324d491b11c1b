"""The agent process: what runs beside a broker's server, and what it collects for feeds."""
