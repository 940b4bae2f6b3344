"""The regions of one node's host tier: room, catalog, writers."""
