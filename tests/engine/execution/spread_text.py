"""A text at several engines: who computed which of its tokens, and the steps that compute the next ones."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from dunlin.messages.engine import Step
from dunlin.messages.types import GroupKind, i8, i32, i64
from tests.engine.commands import make_open, make_step
from tests.engine.execution.members import SAMPLING, Member, group, keep, peer_index, serve, span_columns

TEXT = [(7 * at * at + 3 * at + 11) % 500 for at in range(1300)]
DECODES = 3
STRIPES_AT = 2700
"""The first of the slots that a ring's stripes have for its step."""
Block = tuple[int, int, int]
"""(first token, last, member)."""


class Spread:
    """One text at several members: where its blocks lie, slot = position + `base`; it is open where it has rows. The
    `sampler` computed the last token of a ring.
    """

    def __init__(self, members: Sequence[Member], base: int = 0) -> None:
        self.members = members
        self.blocks: list[Block] = []
        self.sampler = 0
        self._base = base
        self._steps = 0

    def open(self, *numbers: int) -> None:
        for number in numbers:
            self.members[number].tell(make_open(1, TEXT, sampling=SAMPLING, max_tokens=DECODES + 2))

    def step(self, blocks: Sequence[Block], skip: Sequence[int] = ()) -> None:
        """The next tokens, at their masters; all that lies before them is served."""
        self._steps += 1
        self.blocks += blocks
        for me in self.members:
            if me.number not in skip and me.number in {at for _, _, at in self.blocks}:
                me.tell(self._part(me, blocks))

    def ring(self, stripes: Sequence[int], kept: Sequence[Block]) -> None:
        """The next tokens round the members of `stripes`, token by token; `kept` says where they stay. All that lies
        before them is served.
        """
        self._steps += 1
        self.sampler = stripes[(kept[-1][1] - kept[0][0] - 1) % len(stripes)]
        for me in self.members:
            if me.number in {*stripes, *(at for _, _, at in self.blocks)}:
                me.tell(self.ring_step(me, stripes, kept))
        self.blocks += kept

    def ring_step(self, me: Member, stripes: Sequence[int], kept: Sequence[Block]) -> Step:
        """A member's part."""
        start, stop = kept[0][0], kept[-1][1]
        ranges = {at: range(start + turn, stop, len(stripes)) for turn, at in enumerate(stripes)}
        return self._ring_part(me, ranges, [block for block in kept if block[2] == me.number])

    def _ring_part(self, me: Member, stripes: Mapping[int, range], kept: Sequence[Block]) -> Step:
        own, others = stripes.get(me.number), [at for at in stripes if at != me.number]
        columns = group(me, self.members, GroupKind.RING, 40 + self._steps)
        held = [(start, stop, self._base + start) for start, stop, at in self.blocks if at == me.number]
        if held and others:
            columns["serve"] = serve(0, [(1, stripes[at].start, stripes[at].stop, held) for at in others])
            columns["serve"].master[:] = i32(peer_index(me, at) for at in others)
            columns["serve"].stride[:] = i64(stripes[at].step for at in others)
        if own is None:
            return make_step(self._steps, **columns)
        spans = [(0, (start, stop, 1, peer_index(me, at))) for start, stop, at in self.blocks if at != me.number]
        asked = [1] * len(spans) + [0] * len(others)
        spans += [(0, (*_bounds(stripes[at]), peer_index(me, at))) for at in others]
        columns |= span_columns(spans) | {"span_asked": i8(asked)}
        if kept:
            (start, stop, _), layers = kept[0], len(me.loaded.decoder.kv)
            columns["keep"] = keep(0, layers, start, stop, self._base + start)
        row, sample = (1, own.start, own.stop, STRIPES_AT), [own[-1] + 1 == len(TEXT)]
        return make_step(self._steps, row, sample=sample, stride=i64([own.step]), **columns)

    def _part(self, me: Member, blocks: Sequence[Block]) -> Any:
        own = [block for block in blocks if block[2] == me.number]
        spans = [
            (row, (start, stop, 1, peer_index(me, at)))
            for row, block in enumerate(own)
            for start, stop, at in self.blocks
            if at != me.number and stop <= block[0]
        ]
        columns = {**span_columns(spans), **group(me, self.members, GroupKind.MASTERS, 40 + self._steps)}
        parts, masters = [], []
        for block in blocks:
            held = [(a, b, self._base + a) for a, b, at in self.blocks if at == me.number and b <= block[0]]
            if block[2] != me.number and held:
                parts.append((1, block[0], block[1], held))
                masters.append(peer_index(me, block[2]))
        if parts:
            columns["serve"] = serve(0, parts)
            columns["serve"].master[:] = i32(masters)
        rows = [(1, start, stop, self._base + start) for start, stop, _ in own]
        known = len(TEXT) + DECODES
        return make_step(self._steps, *rows, sample=[len(TEXT) <= stop <= known for _, stop, _ in own], **columns)

    def keys(self, layer: int) -> torch.Tensor:
        """The K/V of all tokens in order."""
        parts = [
            self.members[at].loaded.decoder.kv[layer][self._base + start : self._base + stop]
            for start, stop, at in sorted(self.blocks)
        ]
        return torch.cat(parts)


def _bounds(positions: range) -> tuple[int, int, int]:
    return positions.start, positions.stop, positions.step


def samples(events: Sequence[Any]) -> list[tuple[int, float]]:
    return [pair for event in events for pair in zip(event.token, event.logprob, strict=True)]
