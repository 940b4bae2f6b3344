"""The library that one-sided transfers need: staging memory, writes into that of others, short notices.

`nixl_agent.py` has the real one; tests have one of plain memory. Knows no region and no token.
"""

from enum import Enum
from typing import Any, Protocol

from dunlin.messages.exchange import TransferAgent


class AgentError(Exception):
    """The library refused or failed; the text says what was asked of it."""


class WriteState(Enum):
    """State of one write. FAILED: some of the bytes may have arrived."""

    PENDING = "pending"
    DONE = "done"
    FAILED = "failed"


Write = Any
"""What `Agent.write` returns: the library's own handle."""


class Agent(Protocol):
    """One process's end of the transfers. All calls come from one thread, do not block, and raise AgentError."""

    @property
    def descriptor(self) -> TransferAgent:
        """Address and layout of this staging memory, which a peer needs to write into it."""

    @property
    def staging(self) -> memoryview:
        """All registered memory: `about.lanes` lanes for incoming regions, then as many for outgoing ones."""

    def add_peer(self, other: TransferAgent) -> None:
        """Connect to the peer `other`; nothing happens if it is one already."""

    def remove_peer(self, name: str) -> None:
        """Forget a peer: its memory is not written any more. An unknown one is ignored."""

    def notify(self, name: str, notice: bytes) -> None:
        """Send a peer a short notice."""

    def write(self, name: str, offset_bytes: int, address: int, length_bytes: int, notice: bytes) -> Write:
        """Begin to write from `offset_bytes` of this staging memory to `address` at the peer, which gets `notice` when
        the bytes are there.
        """

    def state(self, write: Write) -> WriteState:
        """The state of a write."""

    def release(self, write: Write) -> None:
        """Release the handle of a write, finished or not."""

    def notices(self) -> list[tuple[str, bytes]]:
        """The notices since the last call, each with its sender's name; also advances all transfers under way."""

    def close(self) -> None:
        """Disconnect from all peers and release the memory."""
