"""The error for a model on disk that cannot be served, with the remedy."""

from pathlib import Path


class ModelError(Exception):
    """A model directory that cannot be served: which file, what is wrong with it, what to do about it."""

    def __init__(self, path: str | Path, what: str, remedy: str) -> None:
        super().__init__(f"{path}: {what}; {remedy}")
        self.path = str(path)
        self.what = what
        self.remedy = remedy
