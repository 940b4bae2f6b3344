"""Which engines this instance's engine has met, so that it can reach their memory: asked once, answered once; one that
could not be reached is tried again for a group's leader.

Knows no migration and no group; both ask here.
"""

from enum import Enum

from dunlin.cores.handlers import handles
from dunlin.effects import Address, Effect, Send
from dunlin.messages.engine import EngineReady, Forget, Meet, Met


class PeerState(Enum):
    """What is known of another engine's memory."""

    ASKED = "asked"
    MET = "met"
    UNREACHABLE = "unreachable"


class MetEngines:
    """Owns what is known of the peers' engines, by their address and what their agents said.

    `agent` is what peers need to reach the own engine's memory; empty: they cannot.
    """

    def __init__(self, engine: Address) -> None:
        self.agent = b""
        self._engine = engine
        self._peers: dict[Address, tuple[bytes, PeerState]] = {}

    @property
    def met(self) -> list[Address]:
        """The engines whose memory this engine can reach, as far as it knows, in the order in which it asked."""
        return [peer for peer, (_, state) in self._peers.items() if state is PeerState.MET]

    def state(self, peer: Address, agent: bytes) -> PeerState | None:
        """What is known of the peer with that agent; None: the engine was not told to meet it."""
        known, state = self._peers.get(peer, (b"", None))
        return state if known == agent else None

    def meet(self, peer: Address, agent: bytes) -> list[Effect]:
        """Have the engine meet a peer, unless it was told to with that agent before."""
        if self.state(peer, agent) is not None:
            return []
        self._peers[peer] = agent, PeerState.ASKED
        return [Send(self._engine, Meet(peer, agent))]

    def meet_again(self, peer: Address, agent: bytes) -> list[Effect]:
        """As `meet`, but a peer that could not be reached is tried once more: its connection may have failed."""
        if self.state(peer, agent) is PeerState.UNREACHABLE:
            del self._peers[peer]
        return self.meet(peer, agent)

    def forget(self, peer: Address) -> Effect:
        """No engine at `peer` writes here once the engine has taken this in: before it takes any later step."""
        self._peers.pop(peer, None)
        return Send(self._engine, Forget(peer))

    def on_engine_ready(self, ready: EngineReady) -> None:
        """A new engine: it has met no peer."""
        self.agent = ready.agent
        self._peers.clear()

    def on_engine_lost(self) -> None:
        """Nothing is known of the next engine."""
        self.agent = b""
        self._peers.clear()

    @handles
    def on_met(self, now_s: float, sender: Address, message: Met) -> list[Effect]:
        """The engine can reach a peer's memory, or not; with an agent it is what peers must know of the own engine."""
        if message.agent:
            self.agent = message.agent
            return []
        known = self._peers.get(message.peer)
        if known is not None:
            self._peers[message.peer] = known[0], PeerState.UNREACHABLE if message.detail else PeerState.MET
        return []
