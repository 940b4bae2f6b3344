"""Subcommands that send requests or explain them."""
