"""The emergency workload of the BAD paper: people of a city, emergencies, channels; simulated and live."""
