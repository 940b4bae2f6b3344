"""What the engine is compared with, each in a process of its own: the engine, transformers, the machine's limits."""
