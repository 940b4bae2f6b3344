"""What one-sided transfers need of a library: staging memory, writes into that of others, short notices.

`nixl_agent.py` has the real one; tests have one of plain memory. Knows no region and no token.
"""

from enum import Enum
from typing import Any, Protocol

from dunlin.messages.exchange import TransferAgent


class AgentError(Exception):
    """The library refused or failed; the text says what was asked of it."""


class WriteState(Enum):
    """Of one write. FAILED: whether anything arrived is unknown."""

    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"


Write = Any
"""What `Agent.write` returns: the library's own handle."""


class Agent(Protocol):
    """One process's end. All calls come from one thread, return without waiting, and raise AgentError."""

    @property
    def about(self) -> TransferAgent:
        """What others must know to write here."""

    @property
    def staging(self) -> memoryview:
        """All registered memory: `about.lanes` lanes for what comes, then as many for what goes."""

    def meet(self, other: TransferAgent) -> None:
        """Have `other` as a peer, at once if it is one already."""

    def leave(self, name: str) -> None:
        """Forget a peer: its memory is not written any more. One that is none is ignored."""

    def notify(self, name: str, notice: bytes) -> None:
        """Send a peer a short notice."""

    def write(self, name: str, offset_bytes: int, address: int, length_bytes: int, notice: bytes) -> Write:
        """Begin to write from `offset_bytes` of this staging memory to `address` at the peer, which gets `notice` when
        the bytes are there.
        """

    def state(self, write: Write) -> WriteState:
        """How far a write is."""

    def release(self, write: Write) -> None:
        """Let go of a write, over or not."""

    def notices(self) -> list[tuple[str, bytes]]:
        """What came since the last call, with the sender's name; also moves everything on that is under way."""

    def close(self) -> None:
        """Leave all and let go of the memory."""
