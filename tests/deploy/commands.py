"""Command lines in deploy/ and in the manual, read by the parser of the role that they start."""

import argparse
import importlib


def parsed(words: list[str]) -> tuple[str, argparse.Namespace]:
    """The role of `serve ROLE FLAGS` and its flags as its own parser reads them; a wrong one ends the test."""
    serve, role, *flags = words
    assert serve == "serve"
    arguments: argparse.Namespace = importlib.import_module(f"services.{role}.__main__").parser().parse_args(flags)
    return role, arguments
