"""How staging memory is cut into lanes and chunks, and which lanes are free."""

from typing import Any

import pytest

from dunlin.messages.exchange import TransferAgent
from dunlin.transport.one_sided.staging import LanePool, StagingLayout, staging_layout


@pytest.mark.parametrize("field", ["lanes", "depth", "chunk_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1 << 40])
def test_memory_of_impossible_sizes_is_refused(field: str, value: int) -> None:
    sizes: Any = {"lanes": 1, "depth": 1, "chunk_bytes": 1, field: value}
    with pytest.raises(ValueError, match="lanes of"):
        staging_layout(TransferAgent("a", b"", 0, **sizes))


def test_a_peers_figures_are_its_layout() -> None:
    assert staging_layout(TransferAgent("a", b"", 0, 3, 2, 64)) == StagingLayout(lanes=3, depth=2, chunk_bytes=64)


def test_a_region_is_cut_into_chunks_the_last_of_which_is_shorter() -> None:
    cut = StagingLayout(lanes=3, depth=2, chunk_bytes=64)
    assert [cut.chunks(length) for length in (0, 1, 64, 65, 128)] == [0, 1, 1, 2, 2]
    assert [cut.length(index, 150) for index in range(3)] == [64, 64, 22]


def test_chunks_go_round_in_their_lane() -> None:
    cut = StagingLayout(lanes=3, depth=2, chunk_bytes=64)
    assert (cut.lane_bytes, cut.total_bytes) == (128, 768)
    assert [cut.incoming(1, index) for index in range(4)] == [128, 192, 128, 192]
    assert [cut.outgoing(1, index) for index in range(3)] == [512, 576, 512]


def test_no_two_places_of_the_memory_are_the_same() -> None:
    cut = StagingLayout(lanes=3, depth=4, chunk_bytes=16)
    places = [place(lane, index) for place in (cut.incoming, cut.outgoing) for lane in range(3) for index in range(4)]
    assert sorted(places) == list(range(0, cut.total_bytes, 16))


def test_the_lowest_free_lane_is_taken_first() -> None:
    lanes = LanePool(3)
    assert [lanes.allocate() for _ in range(4)] == [0, 1, 2, None]
    lanes.release(2)
    lanes.release(0)
    assert (len(lanes), lanes.allocate(), lanes.allocate(), len(lanes)) == (2, 0, 2, 0)
