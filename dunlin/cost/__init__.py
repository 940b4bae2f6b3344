"""Cost models of engines and processes: shapes, predictions, stored profiles."""

PROFILES_FILE = "profiles.db"
"""The store of profiles in a data directory."""
