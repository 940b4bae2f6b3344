"""Where a sequence's KV lies, and partial attention that merges into the whole."""

import pytest
import torch

from dunlin.engine.attention.base import BatchRow, KvLocation, merge_partial_attention
from dunlin.engine.attention.fused import partial
from tests.engine.attention.reference import close, make_kv, make_query, reference


@pytest.mark.parametrize("cut", [1, 64, 99])
def test_parts_merge_into_the_whole(cut: int) -> None:
    kv, query = make_kv(100, 2), make_query(3, 6)
    merged = merge_partial_attention(partial(query, kv[:cut]), partial(query, kv[cut:]))
    whole = partial(query, kv)
    assert close(merged, whole)
    assert close(whole, reference(query, kv, before=len(kv)))
    assert not close(partial(query, kv[:cut]), whole, atol=1e-3)


@pytest.mark.parametrize("cut", [1, 64])
def test_the_merge_keeps_the_dtype_of_its_parts(cut: int) -> None:
    kv, query = make_kv(100, 2).bfloat16(), make_query(3, 6).bfloat16()
    out, lse = merge_partial_attention(partial(query, kv[:cut]), partial(query, kv[cut:]))
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)


def test_kv_in_one_run_is_read_without_a_copy_and_scattered_kv_in_order() -> None:
    kv = make_kv(20, 2)
    run = KvLocation(5, 7, None)
    scattered = KvLocation(4, 0, torch.tensor([3, 19, 0, 8]))
    assert run.gather(kv, 1, 4).data_ptr() == kv[8].data_ptr()
    assert torch.equal(run.gather(kv, 1, 4), kv[8:11])
    assert torch.equal(scattered.gather(kv, 1, 3), kv[[19, 0]])
    assert run.index().tolist() == [7, 8, 9, 10, 11]
    assert scattered.index().tolist() == [3, 19, 0, 8]


def test_the_index_leaves_out_slots_beyond_the_length() -> None:
    assert KvLocation(2, 0, torch.tensor([3, 19, 0, 8])).index().tolist() == [3, 19]


def test_a_row_counts_its_tokens_and_those_before_it() -> None:
    row = BatchRow(start=10, stop=14, kv_location=KvLocation(9, 0, None))
    assert (row.tokens, row.context_tokens) == (4, 5)
