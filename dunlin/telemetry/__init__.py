"""Metrics, traces and explanations from messages."""
