"""What a stage of a pipeline takes out of transit rooms before it computes, and whether what it leaves has place."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dunlin.engine.decoder.decoder import Decoder
from dunlin.engine.execution.sequence import EngineSequence
from dunlin.engine.execution.step_batch import StepError, StepRow
from dunlin.engine.transfer.errors import TransferError
from dunlin.engine.transfer.transit_rooms import TransitRooms
from dunlin.messages.engine import Step


class StageRooms:
    """Reads `rooms` for steps over the open `sequences`."""

    def __init__(self, rooms: TransitRooms, sequences: Mapping[int, EngineSequence], decoder: Decoder) -> None:
        self._rooms = rooms
        self._sequences = sequences
        self._decoder = decoder

    def learn_tokens(self, step: Step) -> None:
        """Append the tokens that the last stage of a pipeline sampled, as far as they are not known.

        :raises StepError: what lies in the room are no tokens.
        """
        here = set(step.sequence)
        try:
            found = [row for row in self._rooms.rows(step.hidden_in) if row[0] in here]
            tokens = self._rooms.take(step.hidden_in, found, torch.int64, 1) if found else ()
        except TransferError as error:
            raise StepError(str(error)) from None
        for (sequence, positions), token in zip(found, tokens, strict=True):
            state = self._sequences.get(sequence)
            if state is not None and not state.ended and positions.start == len(state.tokens):
                state.append(int(token))

    def take_hidden(self, room: int, rows: Sequence[StepRow]) -> Tensor:
        """:raises StepError: the room has not the rows' hidden states."""
        try:
            dtype, width = self._decoder.dtype, self._decoder.config.hidden
            found = self._rooms.take(room, [row.name for row in rows], dtype, width)
            return found.to(self._decoder.device, copy=True)  # a layer may add to it in place
        except TransferError as error:
            raise StepError(str(error)) from None

    def check(self, rows: Sequence[StepRow]) -> None:
        """:raises StepError: the room has no place for what the rows leave."""
        if rows and rows[0].hidden_out:
            token_bytes = self._decoder.dtype.itemsize * self._decoder.config.hidden
            try:
                self._rooms.check(rows[0].hidden_out, [row.tokens * token_bytes for row in rows])
            except TransferError as error:
                raise StepError(str(error)) from None
