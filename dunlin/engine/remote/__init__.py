"""KV and activations from an engine's memory into that of engines on other nodes, by a process beside the engine."""
