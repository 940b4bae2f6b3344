"""Bytes of regions from one node to another, beside the event loop and never through it."""
