"""Who has a stream and writes here. Thousands may, so nobody is looked for among all. Knows no region."""

from dunlin.effects import Address


class Writers:
    """Owns the set of writers with a stream."""

    def __init__(self) -> None:
        self._named: dict[tuple[str, str], dict[Address, None]] = {}

    def __contains__(self, writer: Address) -> bool:
        return writer in self._named.get((writer.role, writer.name), ())

    def add(self, writer: Address) -> None:
        """Its stream is open."""
        self._named.setdefault((writer.role, writer.name), {})[writer] = None

    def remove(self, writer: Address) -> None:
        """Its stream ended. Raises KeyError if there was none."""
        named = self._named[writer.role, writer.name]
        del named[writer]
        if not named:
            del self._named[writer.role, writer.name]

    def incarnations(self, writer: Address) -> list[Address]:
        """Those of the same process, in the order of joining."""
        return list(self._named.get((writer.role, writer.name), ()))
