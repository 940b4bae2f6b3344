"""Each source puts the same bytes into a layer's memory, piece by piece, or says why it cannot."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from dunlin.engine.decoder import numerics
from dunlin.engine.decoder.loading.loader import load_model
from dunlin.engine.decoder.loading.weight_sources import (
    CheckpointSource,
    HostSource,
    PeerSource,
    SourceByLayer,
    WeightSource,
    WeightSourceError,
)
from dunlin.engine.decoder.loading.weights import PIECE_BYTES, WeightRoom, digest_of
from tests.engine.build import make_checkpoint


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), layers=2, hidden=256, intermediate=1000)


@pytest.fixture(scope="module")
def rooms(directory: Path) -> list[WeightRoom]:
    """Layers 0 and 1 as an engine has them."""
    loaded = load_model(directory, "float32", 1 << 20, numerics.fast_numerics(), os.memfd_create("arena"))
    return [loaded.arena.layer_room(layer) for layer in range(2)]


@pytest.fixture
def empty(directory: Path) -> Iterator[WeightRoom]:
    fd = os.memfd_create("arena")
    loaded = load_model(directory, "float32", 1 << 20, numerics.fast_numerics(), fd)
    room = loaded.arena.layer_room(1)
    room.content.zero_()
    yield room
    loaded.arena.close()
    os.close(fd)


def delivered(rooms: list[WeightRoom], at_once: int) -> PeerSource:
    def receive(layer: int, offset: int, out: torch.Tensor) -> int:
        piece = rooms[layer].content[offset : offset + min(at_once, len(out))]
        out[: len(piece)] = piece
        return len(piece)

    return PeerSource(receive)


def test_every_source_brings_the_layers_weights_in_pieces(
    directory: Path, rooms: list[WeightRoom], empty: WeightRoom
) -> None:
    host = HostSource({1: rooms[1].content.clone()})
    absent = HostSource({})
    wanted = digest_of(rooms[1])
    sources: list[WeightSource] = [
        CheckpointSource(directory),
        host,
        delivered(rooms, 77_777),
        delivered(rooms, 1 << 40),
        SourceByLayer({1: host}, absent),
        SourceByLayer({0: absent}, host),
    ]
    for source in sources:
        empty.content.zero_()
        pieces = list(source.fill(1, empty))
        assert len(pieces) > 1
        assert 0 < max(pieces) <= PIECE_BYTES
        assert digest_of(empty) == wanted


def test_a_source_names_what_it_is(directory: Path) -> None:
    names = [repr(each) for each in (CheckpointSource(directory), HostSource({}), PeerSource(lambda *_: 0, "i3"))]
    assert names == [f"the checkpoint in {directory}", "host memory", "i3"]
    assert repr(SourceByLayer({1: HostSource({})}, CheckpointSource(directory))).startswith("{1: host memory} or the c")


def test_what_a_source_has_not_it_says(empty: WeightRoom) -> None:
    for content in (torch.zeros(5, dtype=torch.uint8), torch.zeros(len(empty.content), dtype=torch.int8)):
        with pytest.raises(WeightSourceError, match=f"host memory holds no {len(empty.content)} bytes of layer 1"):
            list(HostSource({1: content}).fill(1, empty))
    for count in (-1, PIECE_BYTES + 1):
        with pytest.raises(WeightSourceError, match=f"i3 says that it delivered {count} bytes at 0 of layer 1"):
            list(PeerSource(lambda *_, count=count: count, "i3").fill(1, empty))


def test_a_peer_that_delivers_nothing_is_asked_again(empty: WeightRoom) -> None:
    pieces = PeerSource(lambda *_: 0).fill(1, empty)
    assert [next(pieces) for _ in range(3)] == [0, 0, 0]
