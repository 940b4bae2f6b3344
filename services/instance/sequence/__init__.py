"""Sequences of an instance: their states, crash suspects, finished answers."""
