"""Why a transfer cannot be done. Imports nothing."""


class TransferError(Exception):
    """A transfer that cannot be done, or not go on; the text says why."""


class LayoutChangingError(TransferError):
    """The memory's layout is changing: in a moment another one is in force, or the same one again."""
