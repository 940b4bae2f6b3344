"""Devices like a measured one: what computes is as fast, what reads memory or goes over NVLink is slower."""

from math import log2

import pytest

from dunlin.cost.composer import StepComposer
from dunlin.cost.device import find_device
from dunlin.cost.device_variants import VARIANTS, DeviceVariant, variant_of
from dunlin.cost.shapes import SHAPES
from dunlin.cost.surface import Surface
from tests.cost.small_device import make_device

A100, H200 = find_device("a100"), find_device("h200")


@pytest.mark.parametrize(("name", "like"), [(name, variant.like) for name, variant in VARIANTS.items()])
def test_large_prompts_take_as_long_and_nothing_takes_less(name: str, like: str) -> None:
    variant, base = (StepComposer(find_device(each), SHAPES["llama-3-8b"]) for each in (name, like))
    assert variant.linear_s(8192) == pytest.approx(base.linear_s(8192), rel=0.01)
    for rows in (1, 64, 512):
        assert variant.linear_s(rows) >= base.linear_s(rows)
        assert variant.decode_attention_s(rows, 2000) >= base.decode_attention_s(rows, 2000)


@pytest.mark.parametrize(("name", "like", "ratio"), [("a100-40g", A100, 2.039 / 1.555), ("h100", H200, 4.8 / 3.35)])
def test_long_contexts_are_read_at_the_memory_s_rate(name: str, like: object, ratio: float) -> None:
    slow, fast = (StepComposer(device, SHAPES["llama-3-8b"]) for device in (find_device(name), like))  # type: ignore[arg-type]
    assert slow.decode_attention_s(64, 30_000) == pytest.approx(ratio * fast.decode_attention_s(64, 30_000), rel=0.02)
    assert fast.linear_s(8) < slow.linear_s(8) <= ratio * fast.linear_s(8)


def test_an_a800_differs_in_nvlink_alone() -> None:
    a800 = find_device("a800")
    assert a800.prefill == A100.prefill
    assert a800.gemm.values == pytest.approx(A100.gemm.values)
    assert a800.nvlink.bytes_per_s == pytest.approx(A100.nvlink.bytes_per_s * 2 / 3)
    large, small = 2.0**30, 2.0**8
    assert a800.all_reduce[8].at(large) == pytest.approx(1.5 * A100.all_reduce[8].at(large), rel=0.01)
    assert a800.all_reduce[8].at(small) == pytest.approx(A100.all_reduce[8].at(small), rel=0.01)


def test_a_variant_has_its_own_memory_and_says_that_it_is_estimated() -> None:
    small = find_device("A100-40G")
    assert (small.name, small.memory_bytes, small.bytes_per_s) == ("a100-40g", 40_000_000_000, 1.555e12)
    assert "NVIDIA A100 80 GB SXM" in small.estimated["all of it"]


def test_a_product_that_waits_for_memory_in_part_takes_as_much_longer_as_its_bytes_need() -> None:
    """An 8 x 8 x 8 product computes 1024 FLOP in 64 s, and its three matrices of 128 bytes are read in 128 s at a
    quarter of the bandwidth: all of its 65 s but the shortest product's second take twice as long.
    """
    table = Surface(("m", "n", "k"), ((0.0, 3.0), (3.0,), (3.0,)), (0.0, log2(65.0)))
    device = make_device(flops=16.0, bytes_per_s=12.0, gemm=table)
    slow = variant_of(device, "slow", DeviceVariant("small", "Slow", 10**9, 3.0))
    assert slow.gemm.at(8, 8, 8) == pytest.approx(1.0 + 64.0 * 2, rel=1e-12)
    assert slow.gemm.at(1, 8, 8) == 1.0
