"""Unary and streaming calls, health, the listening port."""
