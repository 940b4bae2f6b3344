"""Sequences that move between instances: out, in, evacuation, hand-off from prefill to decode."""
