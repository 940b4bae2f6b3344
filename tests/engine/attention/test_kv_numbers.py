"""Keys and values as fp8: rounded to the nearest, cut at the end, and only in their slots."""

import torch

from dunlin.engine.attention.kv_numbers import put_slots, rounded

FP8 = torch.float8_e4m3fn


def test_numbers_are_rounded_to_three_bits_of_mantissa() -> None:
    given = torch.tensor([1.0, 1.06, 1.07, 0.3, -203.0, 0.0])
    assert rounded(given, FP8).tolist() == [1.0, 1.0, 1.125, 0.3125, -208.0, 0.0]
    assert rounded(torch.tensor([17.0, 19.0]), FP8).tolist() == [16.0, 20.0], "ties go to the even one"


def test_what_is_too_large_is_cut_and_what_is_no_number_stays_none() -> None:
    infinite = float("inf")
    cut = rounded(torch.tensor([449.0, 1e9, infinite, -1e9, -infinite]), FP8).float()
    assert cut.tolist() == [448.0, 448.0, 448.0, -448.0, -448.0]
    assert torch.isnan(rounded(torch.tensor([float("nan")]), FP8).float()).all()


def test_other_numbers_are_kept_as_they_are() -> None:
    given = torch.tensor([500.0, 0.1]).bfloat16()
    assert rounded(given, torch.bfloat16) is given


def test_rows_go_to_their_slots_alone() -> None:
    layer_kv = torch.full((4, 2, 1, 2), 7.0).to(FP8)
    put_slots(layer_kv, torch.tensor([3, 1]), torch.tensor([[[1.06, 2.0], [3.0, 999.0]], [[-1.0, 0.3], [5.0, 6.0]]]))
    assert layer_kv[3].flatten().tolist() == [1.0, 2.0, 3.0, 448.0]
    assert layer_kv[1].flatten().tolist() == [-1.0, 0.3125, 5.0, 6.0]
    assert torch.equal(layer_kv[[0, 2]].float(), torch.full((2, 2, 1, 2), 7.0))
