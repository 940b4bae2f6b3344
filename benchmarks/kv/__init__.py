"""KV: prefix reuse, migration, preemption, restore, transport, isolation, corruption."""
