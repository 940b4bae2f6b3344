"""Sequences that migrate between instances: out, in, evacuation, hand-off from prefill to decode."""
