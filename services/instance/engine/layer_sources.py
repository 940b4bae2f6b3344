"""Names where the engine reads the weights of layers that come back: its peers in the node, one after the other, then
the checkpoint. Pure; knows no phase.
"""

from collections.abc import Callable, Sequence

from dunlin.effects import Address
from dunlin.messages.engine import LayerSource
from dunlin.messages.types import Figure, RejectedOption, Why
from services.instance.kv.config import DISK, PEER


class LayerSources:
    """Owns the sources that are left for one load. `peers()`: the engines whose memory this engine can read.

    What a peer holds is the engine's to find out: a source that cannot deliver fails the phase, and the next one is
    named. Whatever is read is compared with the layers' digests.
    """

    def __init__(self, first_choice: str, peers: Callable[[], Sequence[Address]]) -> None:
        self._first_choice = first_choice
        self._peers = peers
        self._left: list[Address] = []
        self._failed: list[RejectedOption] = []

    def begin(self) -> None:
        """A load is about to be ordered."""
        self._left = list(self._peers()) if self._first_choice == PEER else []
        self._failed = []

    def fail(self, detail: str) -> bool:
        """The source named last did not deliver; whether another one is left."""
        if not self._left:
            return False
        self._failed.append(RejectedOption(self._left.pop(0).name, detail))
        return True

    def named(self, layers: Sequence[int]) -> tuple[LayerSource, ...]:
        """The source of these layers now; none where it is the checkpoint."""
        return tuple(LayerSource(layer, self._left[0]) for layer in layers) if self._left else ()

    def why(self, layers: Sequence[int]) -> Why:
        """The reason for it."""
        chosen = self._left[0].name if self._left else DISK
        rejected = list(self._failed)
        if self._left:
            rejected.append(RejectedOption(DISK, "slower than the memory of the node"))
        elif not rejected:
            rejected.append(RejectedOption(PEER, "none is known, or none is to be asked"))
        return Why("remap", f"load from {chosen}", (Figure("layers", len(layers)),), tuple(rejected))
