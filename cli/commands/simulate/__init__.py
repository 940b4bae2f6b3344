"""Subcommands that simulate."""
