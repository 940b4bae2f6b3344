"""Why a transfer cannot be done. Imports nothing."""


class TransferError(Exception):
    """A transfer that cannot be done, or not go on; the text says why."""
