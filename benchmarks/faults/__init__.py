"""Faults: kills, pauses, outages, and what clients notice."""
