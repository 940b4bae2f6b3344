"""Regions carried by one-sided reads and writes (NIXL)."""
