"""The engine: what computes a step. This package loads no torch; its modules do."""
