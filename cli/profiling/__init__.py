"""Measuring an engine and dunlin's own processes for the cost models."""
