"""Least times from made-up limits and a small model, counted by hand."""

from benchmarks.engine.roofline import LIMITS, PRODUCT, READ_BYTES, Limits, StepWork, linears_s, roofline_s
from benchmarks.engine.workloads import PlannedStep
from dunlin.model.config import ModelConfig
from dunlin.model.rope_config import RopeConfig

CONFIG = ModelConfig(
    family="llama",
    hidden=8,
    intermediate=16,
    layers=2,
    heads=2,
    kv_heads=1,
    head_dim=4,
    vocab=32,
    max_positions=64,
    norm_eps=1e-5,
    rope=RopeConfig(),
    tied=False,
    qkv_bias=False,
    dtype="bfloat16",
    eos_ids=(),
)
LAYERS = 2 * (8 * 16 + 8 * 8 + 8 * 32 + 16 * 8)
HEAD = 8 * 32
KV_BYTES = 2 * 2 * 4 * 2
PREFILL = PlannedStep([0], [0], [3], [1])
DECODE = PlannedStep([0, 1], [3, 9], [4, 10], [1, 1])


def test_work_of_a_prompt() -> None:
    attention = 4 * 2 * 4 * 2 * (1 + 2 + 3)
    assert StepWork.of(CONFIG, PREFILL) == StepWork(
        2 * LAYERS * 3 + 2 * HEAD + attention, 2 * (LAYERS + HEAD) + 3 * KV_BYTES
    )


def test_work_of_decode_rows() -> None:
    attention = 4 * 2 * 4 * 2 * (4 + 10)
    assert StepWork.of(CONFIG, DECODE) == StepWork(
        2 * LAYERS * 2 + 2 * HEAD * 2 + attention, 2 * (LAYERS + HEAD) + 14 * KV_BYTES
    )


def test_a_chunk_that_samples_nothing_reads_no_head() -> None:
    assert StepWork.of(CONFIG, PlannedStep([0], [0], [3], [0])).read_bytes == 2 * LAYERS + 3 * KV_BYTES


def test_the_slower_of_memory_and_arithmetic_bounds_each_step() -> None:
    prefill, decode = StepWork.of(CONFIG, PREFILL), StepWork.of(CONFIG, DECODE)
    balanced = prefill.operations / prefill.read_bytes * 0.99
    limits = Limits(1.0, balanced, {}, {})
    assert roofline_s(CONFIG, [PREFILL, DECODE], limits) == prefill.operations / balanced + decode.read_bytes


def test_limits_from_their_measured_seconds() -> None:
    seconds = dict.fromkeys(LIMITS, 2.0) | {"linears 16": 5.0, "head 64": 7.0}
    limits = Limits.of(seconds)
    assert limits.read_bytes_s == READ_BYTES / 2
    assert limits.operations_s == PRODUCT[0] * PRODUCT[1] * PRODUCT[2]
    assert limits.linears_s == {1: 2.0, 16: 5.0, 64: 2.0, 512: 2.0}
    assert limits.head_s[64] == 7.0


def test_linears_are_interpolated_between_the_measured_counts() -> None:
    limits = Limits(1.0, 1.0, {1: 1.0, 16: 4.0, 64: 8.0}, {1: 0.5, 16: 0.5})
    assert linears_s([PlannedStep([0], [0], [1], [1])], limits) == 1.5
    assert linears_s([PlannedStep([0], [0], [40], [0])], limits) == 6.0
    assert linears_s([PlannedStep([0], [0], [128], [0])], limits) == 16.0
    assert linears_s([PlannedStep([0], [0], [16], [1])] * 2, limits) == 9.0
