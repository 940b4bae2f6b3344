"""Policies: pure functions that choose, one table per decision point."""
