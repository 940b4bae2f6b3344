"""Load: what is sent and when (`traffic`), and the open-loop generator that sends it and keeps records (`loadgen`).

`traffic` and the statistics are pure (seeds are given); the load generator talks to a cluster through a `LoadTarget`.
"""
