"""A codec without a wire, for cores that need bytes."""

from dunlin.effects import Message


class InMemoryCodec:
    """Keeps each message and encodes it as its number."""

    def __init__(self) -> None:
        self._kept: list[Message] = []

    def encode(self, message: Message) -> bytes:
        """The number of the message, in ASCII."""
        self._kept.append(message)
        return str(len(self._kept) - 1).encode()

    def decode(self, kind: str, data: bytes) -> Message:
        """The message that was encoded so."""
        return self._kept[int(data)]
