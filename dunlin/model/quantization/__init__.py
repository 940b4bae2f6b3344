"""Quantised checkpoints by their configuration and the headers of their files: what is read, and what is refused."""
