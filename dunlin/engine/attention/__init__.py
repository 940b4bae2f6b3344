"""Attention backends. This package loads no torch; `registry` names the backends."""
