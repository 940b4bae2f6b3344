"""What keeps a cluster from starting."""


class LaunchError(Exception):
    """A cluster that cannot start (or go on): the text says what, where and what to do about it."""
