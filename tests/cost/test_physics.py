"""No predicted step is faster than the device's peaks allow, takes less with more work, or jumps at a table's edge.

Over every device that ships, every shape and every number of GPUs that the two allow; the bounds are counted here from
the shape alone.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dunlin.cost.composer import StepComposer
from dunlin.cost.device import DeviceError, find_device, known_devices
from dunlin.cost.models import BatchCounts, ComposedModel
from dunlin.cost.shapes import SHAPES, ModelShape, ShapeError

PEAKS = {
    "a100": (312e12, 2.039e12),
    "a100-40g": (312e12, 1.555e12),
    "a800": (312e12, 2.039e12),
    "h100": (989e12, 3.35e12),
    "h200": (989e12, 4.8e12),
}
"""FLOP/s in bfloat16 without sparsity and bytes/s, as the data sheets print them."""
LONGEST = 2_000_000

Case = tuple[str, str, int]


def _runs(case: Case) -> bool:
    device, shape, tp = case
    try:
        StepComposer(find_device(device), SHAPES[shape], tp)
    except (ShapeError, DeviceError):
        return False
    return True


CASES = [case for d in known_devices() for s in SHAPES for tp in (1, 2, 4, 8) if _runs(case := (d, s, tp))]
lengths = st.integers(0, 21).flatmap(lambda e: st.integers(2**e // 2 + 1, min(2**e, LONGEST)))


@cache
def model(case: Case) -> ComposedModel:
    device, shape, tp = case
    return StepComposer(find_device(device), SHAPES[shape], tp).step_model()


@st.composite
def batches(draw: st.DrawFn) -> BatchCounts:
    batch = BatchCounts()
    for tokens, prefix in draw(st.lists(st.tuples(lengths, st.just(0) | lengths), max_size=4)):
        for _ in range(draw(st.sampled_from((1, 1, 7, 64)))):
            batch.add_prefill(tokens, prefix)
    if not batch.prefill_rows or draw(st.booleans()):
        rows = draw(st.integers(1, 4096))
        batch.decode_rows, batch.decode_context = rows, rows * draw(lengths)
    return batch


def least_s(case: Case, batch: BatchCounts) -> float:
    """The time at the device's peaks: all operations, or every weight and KV read once: of decode rows, and of prompts
    that of a row, which is as long as a token's mean keys at least.
    """
    device, name, tp = case
    shape = SHAPES[name]
    flops, bytes_per_s = PEAKS[device]
    layer = layer_weights(shape)
    head = shape.vocabulary * shape.hidden
    rows = batch.prefill_rows + batch.decode_rows
    tokens = batch.prefill_tokens + batch.decode_rows
    pairs = batch.prefix_products + (batch.self_products + batch.prefill_tokens) / 2 + batch.decode_context
    operations = 2 * (tokens * shape.layers * layer + rows * head) + 4 * pairs * shape.layers * (
        shape.heads * shape.head_dim
    )
    prompt_keys = (pairs - batch.decode_context) / batch.prefill_tokens if batch.prefill_tokens else 0.0
    kv = 2 * shape.layers * shape.kv_heads * shape.head_dim * (batch.decode_context + prompt_keys)
    return max(operations / flops, shape.dtype_bytes * (shape.layers * layer + head + kv) / bytes_per_s) / tp


def layer_weights(shape: ModelShape) -> int:
    return shape.hidden * (shape.head_dim * 2 * (shape.heads + shape.kv_heads) + 3 * shape.ffn)


def test_every_device_is_checked_against_its_data_sheet() -> None:
    assert sorted(PEAKS) == known_devices()
    assert len({shape for _, shape, _ in CASES}) == len(SHAPES)


@settings(max_examples=150)
@given(st.sampled_from(CASES), batches())
def test_no_step_is_faster_than_the_hardware(case: Case, batch: BatchCounts) -> None:
    assert model(case).step_s(batch) >= least_s(case, batch) * (1 - 1e-9)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tokens", [1, 16, 64])
def test_a_few_tokens_after_a_long_prefix_read_all_of_it(case: Case, tokens: int) -> None:
    batch = BatchCounts()
    batch.add_prefill(tokens, 131_072)
    assert model(case).step_s(batch) >= least_s(case, batch)


@settings(max_examples=150)
@given(st.sampled_from(CASES), batches(), lengths)
def test_more_work_never_takes_less(case: Case, batch: BatchCounts, more: int) -> None:
    larger = []
    if batch.prefill_tokens:
        larger.append(replace(batch, prefix_products=batch.prefix_products + more * batch.prefill_tokens))
    if batch.decode_rows:
        mean = -(-batch.decode_context // batch.decode_rows)
        larger.append(replace(batch, decode_context=batch.decode_context + more))
        larger.append(
            replace(batch, decode_rows=batch.decode_rows + 1, decode_context=batch.decode_context + mean + more)
        )
    base = model(case).step_s(batch)
    assert all(base <= model(case).step_s(each) * (1 + 1e-12) for each in larger)


@settings(max_examples=150)
@given(st.sampled_from(CASES), lengths, st.integers(1, 100_000))
def test_a_longer_prompt_never_takes_less(case: Case, tokens: int, more: int) -> None:
    short, long = BatchCounts(), BatchCounts()
    short.add_prefill(tokens)
    long.add_prefill(tokens + more)
    assert model(case).step_s(short) <= model(case).step_s(long) * (1 + 1e-12)


@settings(max_examples=150)
@given(st.sampled_from(CASES), lengths)
def test_nothing_jumps_where_a_table_ends(case: Case, other: int) -> None:
    device, shape, tp = case
    composer = StepComposer(find_device(device), SHAPES[shape], tp)
    sizes = find_device(device)
    edges: list[tuple[float, Callable[[float], float]]] = [
        (sizes.gemm.last_knot("m"), composer.linear_s),
        (sizes.prefill.last_knot("queries"), lambda x: composer.prefill_attention_s(x, other)),
        (sizes.prefill.last_knot("keys"), lambda x: composer.prefill_attention_s(other, x)),
        (sizes.decode.last_knot("queries"), lambda x: composer.decode_attention_s(x, other)),
        (sizes.decode.last_knot("keys"), lambda x: composer.decode_attention_s(other, x)),
    ]
    for edge, seconds in edges:
        assert seconds(edge * (1 + 1e-7)) == pytest.approx(seconds(edge * (1 - 1e-7)), rel=1e-5)


@pytest.mark.parametrize("case", [CASES[0], CASES[-1]])
def test_the_stages_of_a_model_add_up_to_the_whole(case: Case) -> None:
    device, name, tp = case
    composer, layers = StepComposer(find_device(device), SHAPES[name], tp), SHAPES[name].layers
    stages = [composer.step_model(part) for part in (range(1), range(1, 20), range(20, layers))]
    batch = BatchCounts()
    batch.add_decode(40_000)
    for tokens, prefix in ((1, 0), (777, 5_000), (300_000, 0)):
        batch.add_prefill(tokens, prefix)
        assert sum(stage.step_s(batch) for stage in stages) == pytest.approx(model(case).step_s(batch))


@pytest.mark.parametrize("layers", [range(0), range(-1, 4), range(30, 33), range(0, 32, 2)])
def test_a_stage_outside_the_model_is_refused(layers: range) -> None:
    composer = StepComposer(find_device("a100"), SHAPES["llama-2-7b"])
    with pytest.raises(ShapeError, match="llama-2-7b has layers 0 to 31"):
        composer.step_model(layers)
