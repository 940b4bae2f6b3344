"""Composed models of the devices that ship: rising, of sensible size, quick; and refusals that say what to do."""

import time
from dataclasses import replace
from math import log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dunlin.cost.composer import StepComposer, monotone_curve, monotone_sheet
from dunlin.cost.device import DeviceError, find_device, known_devices, with_links
from dunlin.cost.engine_overheads import parse_overhead
from dunlin.cost.models import BatchCounts
from dunlin.cost.shapes import SHAPES, ModelShape
from dunlin.cost.timing_loader import load_timing
from dunlin.messages.types import TransferKind
from tests.cost.small_device import attention, make_device

LLAMA = load_timing("a100", "llama-2-7b")


def prefill(*lengths: int, prefix: int = 0) -> BatchCounts:
    batch = BatchCounts()
    for length in lengths:
        batch.add_prefill(length, prefix)
    return batch


def decode(rows: int, context: int) -> BatchCounts:
    return BatchCounts(decode_rows=rows, decode_context=rows * context)


@pytest.mark.parametrize("device", known_devices())
@pytest.mark.parametrize(("shape", "tp"), [("llama-2-7b", 1), ("llama-3-70b", 8), ("qwen-2.5-7b", 2)])
def test_every_device_runs_every_shape(device: str, shape: str, tp: int) -> None:
    timing = load_timing(device, shape, tp)
    assert timing.slots > 10_000
    assert 1e-4 < timing.step_s(decode(1, 100)) < timing.step_s(prefill(8192)) < 10


def test_a_decode_step_cannot_beat_the_memory() -> None:
    assert LLAMA.step_s(decode(1, 1)) > SHAPES["llama-2-7b"].weights_bytes() / 2.039e12


def test_a_prefill_cannot_beat_the_arithmetic() -> None:
    assert LLAMA.step_s(prefill(8192)) > 2 * 6.5e9 * 8192 / 312e12


def test_another_engines_iterations_are_met() -> None:
    """LoongServe's table, one A800: prefill of 1,000 and 10 tokens, decode at both; with its engine's overhead."""
    hosted = load_timing("a100", "lwm-text-1m-7b", overhead=parse_overhead("a800-lwm-7b").overhead)
    assert hosted.step_s(prefill(1000)) == pytest.approx(0.0689, rel=0.05)
    assert hosted.step_s(prefill(10)) == pytest.approx(0.01858, rel=0.05)
    assert hosted.step_s(decode(1, 1001)) == pytest.approx(0.01301, rel=0.06)
    assert hosted.step_s(decode(1, 11)) == pytest.approx(0.01138, rel=0.06)


def test_a_chunk_after_a_prefix_costs_more_than_one_without() -> None:
    assert LLAMA.step_s(prefill(512, prefix=30_000)) > 1.5 * LLAMA.step_s(prefill(512))


def test_chunks_add_up_to_about_the_whole() -> None:
    chunks = sum(LLAMA.step_s(prefill(2048, prefix=start)) for start in range(0, 16384, 2048))
    assert chunks == pytest.approx(LLAMA.step_s(prefill(16384)), rel=0.1)


@given(st.integers(1, 4096), st.integers(1, 100_000), st.integers(1, 512), st.integers(1, 100_000))
def test_more_work_never_takes_less(new: int, prefix: int, rows: int, context: int) -> None:
    batch = prefill(new, prefix=prefix)
    batch.decode_rows, batch.decode_context = rows, rows * context
    base = LLAMA.step_s(batch)
    longer = replace(batch, decode_context=batch.decode_context + 1000)
    further = replace(batch, prefix_products=batch.prefix_products + 1000 * new)
    another = replace(batch, decode_rows=rows + 1, decode_context=batch.decode_context + context)
    assert 0 < base <= min(LLAMA.step_s(longer), LLAMA.step_s(further), LLAMA.step_s(another)) * (1 + 1e-12)


def test_a_prediction_takes_microseconds() -> None:
    batch = prefill(500, prefix=100)
    batch.decode_rows, batch.decode_context = 64, 64_000
    best = min(_cpu_s(batch) for _ in range(5))
    assert best < 5e-6  # 1.3 µs here; a busy machine gets some room


def _cpu_s(batch: BatchCounts) -> float:
    start = time.process_time()
    for _ in range(2000):
        LLAMA.step_s(batch)
    return (time.process_time() - start) / 2000


def test_memory_decides_the_slots() -> None:
    shape = SHAPES["llama-2-7b"]
    assert LLAMA.kv_bytes_per_token == 2 * 32 * 32 * 128 * 2
    activations = 8192 * 2 * (2 * 4096 + 3 * 11008)  # residual and norm; gate, up and product
    assert LLAMA.slots == (72 * 10**9 - activations - shape.weights_bytes()) // LLAMA.kv_bytes_per_token


def test_activations_are_of_the_widest_part_of_a_layer_or_the_logits() -> None:
    device = find_device("a100")
    assert StepComposer(device, SHAPES["llama-3-70b"], 4).activation_bytes(1000, 1) == 1000 * 2 * (2 * 8192 + 3 * 7168)
    assert StepComposer(device, SHAPES["llama-3-70b"], 4).activation_bytes(1, 100) == 100 * 128256 // 4 * 8


def test_copies_take_what_their_bytes_need_of_the_memory() -> None:
    links = StepComposer(find_device("a100"), SHAPES["llama-3-70b"], 4).timing().links
    assert (links.pcie, links.switch, links.gpus, links.gpus_per_switch) == (100e9, 25e9, 4, 2)
    assert links.host_busy_share == pytest.approx(3 * 25 / 2039)
    assert links.send_byte_s == links.receive_byte_s == pytest.approx(1 / (4 * 2.039e12))
    assert links.nvlink == pytest.approx(4 * 228e9, rel=0.01)  # measured: 67 MB in 0.294 ms


@pytest.mark.parametrize("tokens", [512, 4096])
def test_what_only_moves_bytes_takes_what_they_need(tokens: int) -> None:
    """Norms read and write the hidden states twice, two sums have three of them, KV is read and written."""
    device, shape = find_device("a100"), SHAPES["llama-2-7b"]
    composer = StepComposer(device, shape)
    hidden, kv = shape.hidden * 2, shape.kv_heads * shape.head_dim * 2
    moved = tokens * (2 * 2 * hidden + 2 * 3 * hidden + 4 * kv)
    assert composer.streaming_s(tokens) > moved / device.bytes_per_s
    # The logits of the head: written, read and read again in fp32, beside its product.
    assert composer.head_s(tokens) > 1.02 * 2 * tokens * shape.vocabulary * shape.hidden / device.flops
    drawn = tokens * shape.vocabulary * 12 / device.bytes_per_s
    assert composer.head_s(tokens) > drawn + 2 * tokens * shape.vocabulary * shape.hidden / device.flops


def test_bandwidths_can_be_given() -> None:
    given = {"pcie": 12e9, "nvlink": 200e9, "nic": 25e9, "memory": 100e9, "node-nic": 5e9}
    timing = StepComposer(with_links(find_device("a100"), given), SHAPES["llama-3-8b"]).timing()
    assert (timing.links.pcie, timing.links.switch, timing.links.nvlink, timing.links.nic) == (12e9, 12e9, 200e9, 25e9)
    assert (timing.node.memory, timing.node.nic) == (100e9, 5e9)
    assert timing.move_s(TransferKind.SLAB_TO_HOST, 12 * 10**9) == pytest.approx(1.0, abs=1e-3)
    with pytest.raises(DeviceError, match="no link 'usb'"):
        with_links(find_device("a100"), {"usb": 1.0})
    with pytest.raises(DeviceError, match="of more than 0"):
        with_links(find_device("a100"), {"nic": 0.0})


def test_rising_takes_the_middle_of_a_dip() -> None:
    assert monotone_curve([1.0, 3.0, 2.0, 4.0]) == (1.0, 2.5, 2.5, 4.0)
    assert monotone_sheet([[1.0, 3.0], [2.0, 2.0]]) == ((1.0, 2.5), (2.0, 2.5))


def test_more_gpus_hold_more_and_take_less() -> None:
    device, shape = find_device("a100"), SHAPES["llama-3-70b"]
    four, eight = (StepComposer(device, shape, tp).timing() for tp in (4, 8))
    assert four.slots < eight.slots
    assert four.step_s(prefill(4096)) > eight.step_s(prefill(4096))


def test_what_only_moves_bytes_is_counted_byte_by_byte() -> None:
    """Of each of 64 tokens: hidden states of 128 bytes, queries of 128, keys and values of 64 each, 512 for the
    activation. Two norms at 2 s a byte, the rotation of queries and keys at 4 s, keys and values read and written at
    1 s, the activation at 8 s, and two sums of three hidden states.
    """
    shape = ModelShape("it", 1, 64, 4, 2, 256, 100, head_dim=16)
    norms, rotation, kv = 2 * 2 * 128, 4 * (128 + 64), 2 * (64 + 64)
    activation, sums = 8 * 512, 2 * 3 * 128
    assert StepComposer(make_device(), shape).streaming_s(64) == pytest.approx(
        64 * (norms + rotation + kv + activation + sums), rel=1e-12
    )


ONE_HEAD = ModelShape("it", 1, 128, 1, 1, 256, 100, dtype_bytes=2)


def test_a_chunk_after_a_short_prefix_takes_its_share_of_a_whole_prompt() -> None:
    """Time rises with the square of the keys. 16 queries over 10 keys each are 16 of the 20 queries of a prompt, which
    attend to 10 each as well: 16/20 of 100 s.
    """
    device = make_device(prefill=attention(queries=(5.0,), keys=(0.0, 6.0), values=(0.0, 12.0)))
    assert StepComposer(device, ONE_HEAD).prefill_attention_s(16, 10) == pytest.approx(80.0, rel=1e-12)


def test_a_whole_prompt_takes_what_the_table_says() -> None:
    device = make_device(prefill=attention(queries=(5.0,), keys=(0.0, 6.0), values=(0.0, 12.0)))
    assert StepComposer(device, ONE_HEAD).prefill_attention_s(16, 8) == pytest.approx(64.0, rel=1e-12)


@pytest.mark.parametrize(
    ("last_s", "seconds"), [(16.0, 16.0 + 8 * 1.0), (8.0, 8.0 + 8 * 0.5)], ids=["last ones", "bytes"]
)
def test_a_key_beyond_the_table_takes_what_the_last_ones_did_or_its_bytes_need(last_s: float, seconds: float) -> None:
    """The table ends with 8 s for 8 keys, and with `last_s` for 16: 1 s or nothing for each between them. K and V of a
    key are 512 bytes, which take half a second. 24 keys are 8 more than the table has.
    """
    table = attention(keys=(3.0, 4.0), values=(3.0, log2(last_s)))
    composer = StepComposer(make_device(decode=table, kv_bytes_per_s=1024.0), ONE_HEAD)
    assert composer.decode_attention_s(1, 24) == pytest.approx(seconds, rel=1e-12)
