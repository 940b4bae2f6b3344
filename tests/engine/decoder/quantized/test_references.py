"""Modules of random bits, dequantised as AutoAWQ, AutoGPTQ, compressed-tensors and transformers do, to the last bit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from dunlin.engine.decoder.quantized.methods import open_rows
from dunlin.engine.decoder.quantized.module import ModuleTensors
from dunlin.model.config_reader import ConfigReader
from dunlin.model.quantization.methods import read_quantization
from dunlin.model.quantization.packed import PackedScheme

CASES = json.loads((Path(__file__).parent / "references.json").read_text())


def tensor_of(written: dict[str, Any]) -> Tensor:
    flat = torch.frombuffer(bytearray.fromhex(written["bytes"]), dtype=getattr(torch, written["dtype"]))
    return flat.view(written["shape"])


@pytest.mark.parametrize("name", CASES)
def test_weights_are_those_that_others_read(name: str) -> None:
    reader = ConfigReader(Path("config.json"), {"quantization_config": CASES[name]["quantization_config"]}, [])
    quantization = read_quantization(reader)
    assert not reader.faults
    assert quantization is not None
    scheme, weight = quantization.scheme_of("model.layers.0.mlp.up_proj"), tensor_of(CASES[name]["weight"])
    assert scheme is not None
    tensors = {last: tensor_of(each) for last, each in CASES[name]["tensors"].items()}
    wanted = {each.suffix: each for each in scheme.tensors(*weight.shape)}
    assert all(tuple(tensor.shape) in wanted[last].shapes for last, tensor in tensors.items())
    assert not scheme.misfit(*weight.shape)
    rows = open_rows(scheme, ModuleTensors(Path(), "up_proj", (weight.shape[0], weight.shape[1]), tensors))
    assert torch.equal(rows(0, len(weight)), weight)


def test_rows_that_do_not_fill_a_word_of_zero_points_are_read() -> None:
    rows = 13
    case = CASES["packed 4 bits asymmetric"]
    tensors = {last: tensor_of(each) for last, each in case["tensors"].items()}
    stored = {"weight_packed": rows, "weight_scale": rows, "weight_zero_point": 2}
    cut = {last: tensors[last][:count] for last, count in stored.items()}
    module = ModuleTensors(Path(), "up_proj", (rows, 32), cut)
    assert torch.equal(open_rows(PackedScheme(4, 8, True, False), module)(0, rows), tensor_of(case["weight"])[:rows])


def test_inputs_that_do_not_fill_a_word_are_read() -> None:
    case = CASES["packed 8 bits by row"]
    tensors = {last: tensor_of(each) for last, each in case["tensors"].items() if last != "weight_shape"}
    rows = open_rows(PackedScheme(8, 0, True, False), ModuleTensors(Path(), "up_proj", (16, 30), tensors))
    assert torch.equal(rows(0, 16), tensor_of(case["weight"])[:, :30])
