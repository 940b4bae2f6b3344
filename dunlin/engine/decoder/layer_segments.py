"""Several layers of a small step in one piece, and what may come of it beyond hidden states."""

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from dunlin.engine.decoder.decoder import DecoderBatch
from dunlin.engine.decoder.sampling.sampling import Choices


class LayerSegments(Protocol):
    """One step's layers. What is launched may be computed later: what is read waits for it."""

    @property
    def hidden(self) -> Tensor:
        """The hidden states before the next layer, `[tokens, hidden]`."""
        ...

    def run(self, layer: int, stop: int) -> int:
        """Launch the layers from `layer` on, not beyond `stop`; returns the next one."""
        ...

    def logits(self, places: Sequence[int]) -> Tensor | None:
        """After the last layer, the logits `[places, vocabulary]` fp32 of these tokens; None: not computed."""
        ...

    def greatest(self, places: Sequence[int]) -> Choices | None:
        """After the last layer, the tokens of the greatest logits of these tokens; None: not chosen."""
        ...


BeginSegments = Callable[[DecoderBatch, Tensor | None], LayerSegments | None]
"""(batch, its hidden states before the first of the layers; None: they are its tokens' embeddings) -> its segments;
None: it cannot be computed by segments.
"""

Record = Callable[[Callable[[], None], bool], Callable[[], None]]
"""(what launches some kernels, whether the same kernels on tensors of the same shapes were recorded before) -> what
launches them again at once.
"""
