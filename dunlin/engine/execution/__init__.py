"""Execution of steps: sequences, batches, KV copies."""
