"""The instance: runs sequences on one engine. `core.py` routes to its folders, each of which imports those above it:

sequence      the sequences and their states
kv            token slots, KV cache, prefix cache, the client of the node's host tier
scheduling    admission to slots, preemption, composition of steps
engine        the engine's answers, its end and recovery
migration     sequences that migrate out and in
checkpoint    KV copied to the host tier and claimed from there
"""
