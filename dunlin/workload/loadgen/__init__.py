"""The load generator: targets, records, statistics, objectives."""
