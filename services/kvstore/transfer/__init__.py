"""Copies of regions between nodes."""
