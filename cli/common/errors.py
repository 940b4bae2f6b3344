"""How a command fails: an exit code and one line that says what, where and what to do."""

OK = 0
FAILED = 1
"""The cluster was reached and the work failed."""
USAGE = 2
"""What was asked cannot be: bad flags, bad files, a port in use."""
UNREACHABLE = 3
"""No cluster answers."""
INTERRUPTED = 130


class CliError(Exception):
    """Ends the command with `code` after printing the text."""

    def __init__(self, text: str, code: int = FAILED) -> None:
        super().__init__(text)
        self.code = code
