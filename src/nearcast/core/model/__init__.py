"""Values: placements, membership, journal, messages, settings, and the names on servers."""
