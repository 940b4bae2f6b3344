"""The common runtime of every service."""
