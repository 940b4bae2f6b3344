"""Parses, checks and tokenises request bodies; large ones in helper processes."""
