"""Which regions, together, hold the KV of a span in every layer that an engine holds. Knows no sequence and no room."""

from collections.abc import Collection, Iterable

from dunlin.messages.engine import EngineReady
from dunlin.messages.types import KeptRegion

Layers = tuple[int, ...]
"""Numbers of layers, ascending."""


def all_layers(ready: EngineReady) -> Layers:
    """The layers of the model, held or not: those whose KV a sequence has."""
    return tuple(range(ready.model_layers or len(ready.layers)))


def group_whole(
    regions: Iterable[KeptRegion], layers: Collection[int]
) -> tuple[list[list[KeptRegion]], list[KeptRegion]]:
    """Groups of regions of one span and the same tokens, in order of their start, the longest first, whose layers are
    `layers`, each once; and the regions that are of no use: of spans without some layer, or of layers that another one
    has.
    """
    by_span: dict[tuple[int, int, bytes], list[KeptRegion]] = {}
    for kept in regions:
        region = kept.region
        by_span.setdefault((region.start, region.stop, kept.chain), []).append(kept)
    groups: list[list[KeptRegion]] = []
    useless: list[KeptRegion] = []
    for span in sorted(by_span):
        group, rest = _tile(by_span[span], layers)
        useless += rest
        if group:
            groups.append(group)
    groups.sort(key=lambda group: (group[0].region.start, -group[0].region.stop))  # stable
    return groups, useless


def _tile(regions: list[KeptRegion], layers: Collection[int]) -> tuple[list[KeptRegion], list[KeptRegion]]:
    """The regions that have each of the layers once, the widest first; and the others."""
    missing, group = set(layers), list[KeptRegion]()
    for kept in sorted(regions, key=lambda each: each.region.layer_start - each.region.layer_stop):
        its = set(range(kept.region.layer_start, kept.region.layer_stop))
        if its and its <= missing:
            missing -= its
            group.append(kept)
    if missing:
        group = []
    return group, [kept for kept in regions if kept not in group]
