"""Cost of decisions and codec without an engine."""
