"""The kvstore: one node's host-memory tier of the KV cache. `core.py` routes to its folders:

regions     bytes, the catalog of regions, their writers
transfer    copies of regions between nodes
"""
