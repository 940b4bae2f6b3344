"""What was recorded, by a key: launched again at once, and recorded when it is first needed."""

from collections.abc import Callable, Hashable

from torch import Tensor

from dunlin.engine.decoder.layer_segments import Record


class Recordings:
    """Owns what `record` made."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._by_key: dict[Hashable, Callable[[], None]] = {}
        self._kinds: set[Hashable] = set()

    def __len__(self) -> int:
        return len(self._by_key)

    def run(self, key: Hashable, kind: Hashable, hidden: Tensor, compute: Callable[[], None]) -> None:
        """Launch what `compute` launches, which reads `hidden` and may write it. Those of one `kind` launch the same
        kernels on tensors of the same shapes.
        """
        found = self._by_key.get(key)
        if found is None:
            before = hidden.clone()
            found = self._by_key[key] = self._record(compute, kind in self._kinds)
            hidden.copy_(before)  # recording may compute, too
            self._kinds.add(kind)
        found()
