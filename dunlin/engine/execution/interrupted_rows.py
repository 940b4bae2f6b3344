"""The rows that left at an interrupt, as the columns of its answer."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from dunlin.messages.engine import Interrupted
from dunlin.messages.types import i8, i32, i64


@dataclass(slots=True)
class InterruptedRows:
    """Columns with an entry per row, and the step that is parked whole; see `Interrupted`."""

    sequences: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    layers: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    parked: list[int] = field(default_factory=list)
    parked_step: int = 0

    def add(self, sequence: int, step: int, layer: int = 0, block: int = 0, parked: bool = False) -> None:
        """A row of `sequence` left `step`."""
        self.sequences.append(sequence)
        self.steps.append(step)
        self.layers.append(layer)
        self.blocks.append(block)
        self.parked.append(parked)

    def park(self, step: int, sequences: Sequence[int], layer: int) -> None:
        """`step` is parked whole, with rows of these sequences."""
        for sequence in sequences:
            self.add(sequence, step, layer, parked=True)
        self.parked_step = step

    def answer(self, ticket: int) -> Interrupted:
        """The interrupt's answer."""
        return Interrupted(
            sequence=i64(self.sequences),
            ticket=ticket,
            step=i64(self.steps),
            layer=i32(self.layers),
            block=i32(self.blocks),
            parked=i8(self.parked),
            parked_step=self.parked_step,
        )
