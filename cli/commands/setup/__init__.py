"""Subcommands that prepare models, keys and certificates."""
