"""The engine: its speed beside others, throughput, overload, neighbours, matrix products."""
