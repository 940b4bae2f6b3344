"""The error that ends a start. The SDK loads it, so it loads nothing."""


class StartError(Exception):
    """The service cannot start; the text says what, where and what to do. Ends the process with code 2."""
