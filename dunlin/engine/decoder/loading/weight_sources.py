"""Where the weights of a layer that comes back are read from: the checkpoint on disk, host memory, or a peer.

A source fills a layer's memory piece by piece, so that steps run meanwhile. It is not trusted: what it wrote is hashed
and compared with the layer's digest before it is used.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from dunlin.engine.decoder.loading.weights import PIECE_BYTES, Checkpoint, WeightRoom, fill_pieces
from dunlin.model.config import load_config


class WeightSourceError(Exception):
    """A source that cannot deliver a layer; the text says why."""


class WeightSource(Protocol):
    """One place to read layers from."""

    def fill(self, layer: int, room: WeightRoom) -> Iterator[int]:
        """Write the layer's weights into `room`; yields bytes written after each piece of about a MiB, 0 while it
        waits for bytes to arrive.

        :raises WeightSourceError, OSError, ModelError: it cannot.
        """
        ...


class CheckpointSource:
    """The checkpoint in `directory`, opened when the first layer is asked for."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._checkpoint: Checkpoint | None = None

    def __repr__(self) -> str:
        return f"the checkpoint in {self._directory}"

    def fill(self, layer: int, room: WeightRoom) -> Iterator[int]:
        if self._checkpoint is None:
            self._checkpoint = Checkpoint(self._directory, load_config(self._directory).quantization)
        return fill_pieces(self._checkpoint, room)


class HostSource:
    """Host memory: by layer, the bytes `[total_bytes]` of its room as another engine had them."""

    def __init__(self, layers: Mapping[int, Tensor]) -> None:
        self._layers = layers

    def __repr__(self) -> str:
        return "host memory"

    def fill(self, layer: int, room: WeightRoom) -> Iterator[int]:
        content = self._layers.get(layer)
        if content is None or content.dtype is not torch.uint8 or content.shape != room.content.shape:
            raise WeightSourceError(f"host memory holds no {len(room.content)} bytes of layer {layer}")
        for at in range(0, len(content), PIECE_BYTES):
            piece = content[at : at + PIECE_BYTES]
            room.content[at : at + PIECE_BYTES] = piece
            yield len(piece)


class PeerSource:
    """Another engine, by a function that takes (layer, byte offset, room for bytes) and returns how many bytes it has
    put there from that offset on: 0 while none have arrived.
    """

    def __init__(self, receive: Callable[[int, int, Tensor], int], name: str = "a peer") -> None:
        self._receive = receive
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def fill(self, layer: int, room: WeightRoom) -> Iterator[int]:
        at = 0
        while at < len(room.content):
            count = self._receive(layer, at, room.content[at : at + PIECE_BYTES])
            if not 0 <= count <= min(PIECE_BYTES, len(room.content) - at):
                raise WeightSourceError(f"{self._name} says that it delivered {count} bytes at {at} of layer {layer}")
            at += count
            yield count


class SourceByLayer:
    """A source for each layer; `otherwise` for those without one."""

    def __init__(self, sources: Mapping[int, WeightSource], otherwise: WeightSource) -> None:
        self._sources = sources
        self._otherwise = otherwise

    def __repr__(self) -> str:
        return f"{self._sources} or {self._otherwise!r}"

    def fill(self, layer: int, room: WeightRoom) -> Iterator[int]:
        return self._sources.get(layer, self._otherwise).fill(layer, room)
