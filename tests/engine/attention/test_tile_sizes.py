"""The sizes of a GPU's tiles: over how many programs a row's keys are split."""

import pytest
import torch

from dunlin.engine.attention.tile_sizes import SIZES, TileSizes, split_counts, split_lengths


def split_count(keys: int) -> int:
    return int(split_counts(torch.tensor(keys)))


@pytest.mark.parametrize("keys", [0, 1, 256, 512, 530, 767, 768, 4096, 16384, 16385, 500_000])
def test_splits_are_bounded_even_and_cover_all_keys(keys: int) -> None:
    sizes, count = SIZES, split_count(keys)
    each = int(split_lengths(torch.tensor(keys)))
    assert count <= sizes.most_splits
    assert (count - 1) * each < max(keys, 1) <= max(count, 1) * each
    assert each % sizes.narrow.keys == 0
    if count > 1:
        assert keys / count > sizes.split_keys / 2


def test_a_few_keys_beyond_a_split_are_no_split_of_their_own() -> None:
    assert [split_count(keys) for keys in (512, 513, 767, 900)] == [1, 1, 1, 2]


@pytest.mark.parametrize("sizes", [SIZES, TileSizes(split_keys=200, most_splits=7)])
def test_rows_within_some_keys_have_no_more_splits_than_is_reckoned(sizes: TileSizes) -> None:
    counts = split_counts(torch.arange(1, 70_001), sizes).cummax(0).values
    bounds = torch.tensor([sizes.splits_within(keys) for keys in range(1, 70_001)])
    assert bool((counts <= bounds).all())
    assert int(counts[-1]) == sizes.splits_within(70_000) == sizes.most_splits


def test_tiles_have_lines_for_all_query_heads_of_a_kv_head() -> None:
    lines = [[shape.lines for shape in SIZES.shapes(heads, 2, 80, torch.bfloat16)] for heads in (2, 6, 34, 500)]
    assert lines == [[16, 128], [16, 128], [32, 128], [256, 256]]
