"""The instance: runs sequences on one engine. `core.py` routes to its folders, each of which imports those above it:

sequence      the sequences and their states
kv            token slots, KV cache, prefix cache, the client of the host tier
scheduling    who starts, who is preempted, what a step holds
engine        the engine's answers, its end and recovery
migration     sequences that leave and arrive
checkpoint    KV copied to the host tier and claimed from there
"""
