"""Weights: from checkpoints, peers or the host's memory to the arena."""
