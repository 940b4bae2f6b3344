"""A device of whose operations each takes what a sum on paper says."""

from dataclasses import replace
from math import log2
from typing import Any

from dunlin.cost.device import Device, LinkModel
from dunlin.cost.links import NodeLinks
from dunlin.cost.surface import Surface

ROWS = ("queries", "keys", "group", "kv_heads")
MANY = 1e30
"""A peak that bounds nothing."""
LINK = LinkModel(0.0, MANY)


def product_of(factor: float, *axes: str) -> Surface:
    """The product of its coordinates, times the factor."""
    return Surface(axes, ((0.0,),) * len(axes), (log2(factor),))


def make_device(**parts: Any) -> Device:
    """Peaks bound nothing, attention takes a second per query and key, and a byte of each stream its own time: of a sum
    1 s, a norm 2 s, a rotation 4 s, an activation 8 s. `parts` replace these.
    """
    rows = {name: product_of(factor, "tokens", "row_bytes") for name, factor in STREAMS.items()}
    streams = {"add": product_of(1.0, "bytes"), **rows}
    device = Device(
        "small", "Small", 10**9, MANY, MANY, MANY, MANY, product_of(1.0, "m", "n", "k"), attention(), attention(), {},
        streams, LINK, LINK, LINK, 1, NodeLinks(), LINK, 0.0,
    )  # fmt: skip
    return replace(device, **parts)


STREAMS = {"norm": 2.0, "rope": 4.0, "activation": 8.0}


def attention(
    queries: tuple[float, ...] = (0.0,), keys: tuple[float, ...] = (0.0,), values: tuple[float, ...] = (0.0,)
) -> Surface:
    """Over so many queries and keys (log2), the same for up to 64 query heads per kv head, of one kv head."""
    return Surface(ROWS, (queries, keys, (6.0,), (0.0,)), values)
