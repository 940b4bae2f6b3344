"""Bytes between an engine's KV cache, its activation rooms, the host tier and the memory of other engines."""
