"""Subcommands that start, show and change a cluster."""
