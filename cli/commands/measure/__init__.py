"""Subcommands that measure."""
