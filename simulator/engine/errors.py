"""What goes wrong in a simulation because of what is simulated."""


class ContractBroken(Exception):
    """A core asked a model for what the contract of the real thing forbids: the text says what and where."""
