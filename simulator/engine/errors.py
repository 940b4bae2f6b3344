"""Errors that a simulation raises because of what the simulated parts do."""


class ContractBroken(Exception):
    """A core asked a model for what the real part's contract forbids; the text says what and where."""
