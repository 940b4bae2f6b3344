"""Functions over blocks: which tokens of a sequence lie at which member."""

from collections.abc import Iterable, Sequence

from dunlin.policies.groups.elastic import Block


def cut_off(blocks: Sequence[Block], stop: int) -> list[Block]:
    """What lies before token `stop`."""
    return [Block(each.member, each.start, min(each.stop, stop)) for each in blocks if each.start < stop]


def cut_before(blocks: Sequence[Block], start: int) -> list[Block]:
    """What lies from token `start` on."""
    return [Block(each.member, max(each.start, start), each.stop) for each in blocks if each.stop > start]


def tokens_of(blocks: Iterable[Block]) -> int:
    """The number of tokens."""
    total = 0
    for block in blocks:
        total += block.stop - block.start
    return total
