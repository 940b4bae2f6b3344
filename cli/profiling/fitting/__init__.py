"""Fitting cost models to measurements and tables."""
