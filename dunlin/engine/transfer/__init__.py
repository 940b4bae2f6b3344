"""Bytes between an engine's KV cache, its transit rooms, the host tier and the memory of other engines."""
