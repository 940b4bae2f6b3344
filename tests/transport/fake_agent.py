"""An agent of plain memory: writes land, and notices come, when the other side looks. For tests of the machines."""

from dataclasses import dataclass, field

from dunlin.messages.exchange import TransferAgent
from dunlin.transport.one_sided.agent import AgentError, WriteState
from dunlin.transport.one_sided.staging import StagingLayout

BASE = 1 << 40


@dataclass(eq=False)
class FakeWrite:
    """Done once the receiver looked."""

    state: WriteState = WriteState.PENDING
    is_released: bool = False


@dataclass
class Hub:
    """The network: agents by name, and what is under way. `cut_off` names are reached by nobody."""

    agents: dict[str, "FakeAgent"] = field(default_factory=dict)
    cut_off: set[str] = field(default_factory=set)
    drops_notices: bool = False


class FakeAgent:
    """See `dunlin.transport.one_sided.agent.Agent`."""

    def __init__(self, hub: Hub, name: str, cut: StagingLayout) -> None:
        self.hub = hub
        self.descriptor = TransferAgent(
            name, b"metadata of " + name.encode(), BASE, cut.lanes, cut.depth, cut.chunk_bytes
        )
        self._memory = bytearray(cut.total_bytes)
        self.staging = memoryview(self._memory)
        self.peers: dict[str, None] = {}
        self.arriving: list[tuple[str, FakeWrite | None, int, bytes, bytes]] = []
        self.writes: list[FakeWrite] = []
        self.most_at_once = 0
        self.left: list[str] = []
        self.breaks = False
        hub.agents[name] = self

    def add_peer(self, other: TransferAgent) -> None:
        if other.metadata != b"metadata of " + other.name.encode():
            raise AgentError("no such metadata")
        self.peers[other.name] = None

    def remove_peer(self, name: str) -> None:
        if self.peers.pop(name, 0) is None:
            self.left.append(name)

    def notify(self, name: str, notice: bytes) -> None:
        self._to(name).arriving.append((self.descriptor.name, None, 0, b"", notice))

    def write(self, name: str, offset_bytes: int, address: int, length_bytes: int, notice: bytes) -> FakeWrite:
        there, write = self._to(name), FakeWrite()
        at = address - BASE
        assert 0 <= at <= len(there.staging) // 2 - length_bytes, "outside what comes in"
        assert offset_bytes >= len(self.staging) // 2, "from what comes in"
        content = bytes(self.staging[offset_bytes : offset_bytes + length_bytes])
        there.arriving.append((self.descriptor.name, write, at, content, notice))
        self.writes.append(write)
        pending = [one for one in self.writes if one.state is WriteState.PENDING]
        self.most_at_once = max(self.most_at_once, len(pending))
        return write

    def state(self, write: FakeWrite) -> WriteState:
        assert not write.is_released
        return write.state

    def release(self, write: FakeWrite) -> None:
        write.is_released = True

    def notices(self) -> list[tuple[str, bytes]]:
        if self.breaks:
            raise AgentError("the library broke")
        arriving, self.arriving = self.arriving, []
        found: list[tuple[str, bytes]] = []
        for name, write, at, content, notice in arriving:
            self.staging[at : at + len(content)] = content
            if write is not None:
                write.state = WriteState.DONE
            found.append((name, notice))
        return found

    def close(self) -> None:
        self.hub.agents.pop(self.descriptor.name, None)

    def _to(self, name: str) -> "FakeAgent":
        if name not in self.peers or name in self.hub.cut_off or name not in self.hub.agents:
            raise AgentError(f"{name} is out of reach")
        return self.hub.agents[name]
