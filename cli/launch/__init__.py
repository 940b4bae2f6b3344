"""`dunlin up`: all services of a cluster on one machine, started, watched, restarted and stopped by one parent.

Knows processes, ports and files; knows nothing of requests, tokens or placement.
"""
