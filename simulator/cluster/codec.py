"""What stands for the wire where a core needs bytes."""

from dunlin.effects import Message


class KeptMessages:
    """A codec that keeps the message and gives its number: the monitor needs bytes, not a wire."""

    def __init__(self) -> None:
        self._kept: list[Message] = []

    def encode(self, message: Message) -> bytes:
        self._kept.append(message)
        return str(len(self._kept) - 1).encode()

    def decode(self, kind: str, data: bytes) -> Message:
        return self._kept[int(data)]
