"""Attention backends. This package loads no torch; `table` names the backends."""
