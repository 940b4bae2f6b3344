"""The engine: throughput, overload, neighbours, matrix products."""
