"""Transfers of KV regions from one node to another, in threads beside the event loop."""
