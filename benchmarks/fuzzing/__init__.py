"""Fuzzing of parsers and random search of property tests."""
