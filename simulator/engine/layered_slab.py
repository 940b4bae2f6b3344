"""The contents of the slots of a modelled KV cache, layer by layer.

All layers of a slot mostly hold the same token's KV, so layers with the same contents share one list; they part when a
row or a transfer writes some of them only.
"""

from collections.abc import Iterable

Content = int | None
MIXED = -3
"""What a slot holds, read over layers that hold the KV of different tokens."""


class LayeredSlab:
    """The content of each slot in each of `layers` layers; None: nothing was written."""

    def __init__(self, slots: int, layers: int) -> None:
        self._groups: list[tuple[frozenset[int], list[Content]]] = [(frozenset(range(layers)), [None] * slots)]

    def __len__(self) -> int:
        """Slots in a layer."""
        return len(self._groups[0][1])

    def read(self, slots: list[int], layers: frozenset[int] | None = None) -> list[Content]:
        """The contents of `slots` over `layers` (None: all), `MIXED` where the layers disagree."""
        first, *others = self._of(layers)
        contents = [first[slot] for slot in slots]
        for other in others:
            contents = [one if one == other[slot] else MIXED for one, slot in zip(contents, slots, strict=True)]
        return contents

    def write(self, slots: list[int], contents: Iterable[Content], layers: frozenset[int] | None = None) -> None:
        """Write `contents`, which may be fewer than `slots`, into `layers` (None: all) of `slots`."""
        written = list(contents)
        for slab in self._of(layers):
            for slot, content in zip(slots, written, strict=False):
                slab[slot] = content

    def fill(self, content: Content, layers: frozenset[int] | None = None) -> None:
        """Write `content` into all slots of `layers` (None: all)."""
        for slab in self._of(layers):
            slab[:] = [content] * len(slab)

    def resize(self, slots: int) -> None:
        """From now on a layer has so many slots: the tail's contents are lost, or empty."""
        for _, slab in self._groups:
            del slab[slots:]
            slab.extend([None] * (slots - len(slab)))

    def _of(self, layers: frozenset[int] | None) -> list[list[Content]]:
        """The lists of exactly `layers`, which part from the others where they were shared."""
        if layers is None or (len(self._groups) == 1 and layers == self._groups[0][0]):
            return [slab for _, slab in self._groups]
        parted: list[tuple[frozenset[int], list[Content]]] = []
        for group, slab in self._groups:
            inside, outside = group & layers, group - layers
            parted += [(part, slab if part is inside else list(slab)) for part in (inside, outside) if part]
        self._groups = parted
        return [slab for group, slab in parted if group <= layers]
