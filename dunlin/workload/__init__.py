"""Load: traces, arrival processes, the open-loop generator, and what is made of its records.

`arrivals`, `prompts` and `stats` are pure (seeds are given); `generator` talks to a cluster through a `Door`.
"""
