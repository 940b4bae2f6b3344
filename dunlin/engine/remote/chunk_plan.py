"""How a transfer is cut into chunks: each a region of its own, or a stretch of a transit room. Pure."""

from collections.abc import Iterator

from dunlin.messages.types import Region


def kv_chunks(region: Region, slot_bytes: int, most_bytes: int) -> Iterator[Region]:
    """The region in order of its bytes, layer by layer: several whole layers, or a part of one, at a time."""
    tokens = region.stop - region.start
    layers = most_bytes // (tokens * slot_bytes)
    if layers:
        for layer in range(region.layer_start, region.layer_stop, layers):
            yield Region(layer, min(layer + layers, region.layer_stop), region.start, region.stop)
        return
    part = max(most_bytes // slot_bytes, 1)
    for layer in range(region.layer_start, region.layer_stop):
        for start in range(region.start, region.stop, part):
            yield Region(layer, layer + 1, start, min(start + part, region.stop))


def room_chunks(length_bytes: int, most_bytes: int) -> Iterator[Region]:
    """The bytes of a room as regions without layers, in order."""
    for start in range(0, length_bytes, most_bytes):
        yield Region(0, 0, start, min(start + most_bytes, length_bytes))
