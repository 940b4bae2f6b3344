"""Rotary embedding: frequencies of each kind, angles by position, and a rotation that keeps lengths."""

import math

import pytest
import torch

from dunlin.engine.decoder.rope import apply_rotary, inverse_frequencies, rotary_angles
from dunlin.model.rope_config import RopeConfig


def test_frequencies_fall_by_powers_of_theta() -> None:
    found = inverse_frequencies(RopeConfig(theta=10_000.0), head_dim=8)
    assert found.tolist() == pytest.approx([1.0, 0.1, 0.01, 0.001])


def test_linear_scaling_divides_every_frequency() -> None:
    found = inverse_frequencies(RopeConfig(theta=10_000.0, kind="linear", factor=4.0), head_dim=8)
    assert found.tolist() == pytest.approx([0.25, 0.025, 0.0025, 0.00025])


def test_llama3_keeps_short_waves_slows_long_ones_and_blends_between() -> None:
    config = RopeConfig(10_000.0, "llama3", 8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_positions=100)
    # Wavelengths 2π, 20π, 200π, 2000π: under 100 / 4, between 25 and 100, and two beyond 100.
    blend = (100 / (20 * math.pi) - 1.0) / 3.0
    found = inverse_frequencies(config, head_dim=8)
    assert found.tolist() == pytest.approx([1.0, 0.1 * (blend + (1 - blend) / 8), 0.01 / 8, 0.001 / 8])


def test_angles_are_cosines_and_sines_of_position_times_frequency() -> None:
    turn = rotary_angles(torch.tensor([1.0, 0.5]), torch.tensor([0, 3]))
    assert turn.shape == (2, 2, 1, 2)
    assert turn[0].flatten().tolist() == [1.0, 1.0, 0.0, 0.0]
    assert turn[1].flatten().tolist() == pytest.approx([math.cos(3), math.cos(1.5), math.sin(3), math.sin(1.5)])


def test_a_dimension_turns_with_the_one_half_a_head_further() -> None:
    quarter = torch.tensor([math.pi / 2, 0.0])  # the first pair by a quarter, the second not at all
    turned = apply_rotary(torch.tensor([[[1.0, 2.0, 3.0, 4.0]]]), rotary_angles(quarter, torch.tensor([1])))
    assert turned.flatten().tolist() == pytest.approx([-3.0, 2.0, 1.0, 4.0], abs=1e-6)


def test_a_product_of_rotated_vectors_depends_on_their_distance_alone() -> None:
    draw = torch.Generator().manual_seed(3)
    query, key = (torch.randn(1, 1, 16, generator=draw) for _ in range(2))
    frequencies = inverse_frequencies(RopeConfig(), 16)

    def score(query_at: int, key_at: int) -> float:
        turned = [
            apply_rotary(vector, rotary_angles(frequencies, torch.tensor([at])))
            for vector, at in ((query, query_at), (key, key_at))
        ]
        return float((turned[0] * turned[1]).sum())

    assert score(12, 5) == pytest.approx(score(107, 100), abs=1e-4)
    assert score(12, 5) != pytest.approx(score(12, 6), abs=1e-2)


def test_the_dtype_of_the_vectors_is_kept() -> None:
    vectors = torch.ones(2, 3, 8, dtype=torch.bfloat16)
    turned = apply_rotary(vectors, rotary_angles(torch.ones(4), torch.tensor([0, 1])))
    assert turned.dtype == torch.bfloat16
    assert torch.equal(turned[0], vectors[0])
