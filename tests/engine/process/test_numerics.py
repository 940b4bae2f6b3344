"""What an engine computes with: refused where its device cannot, and told once."""

from dataclasses import replace
from pathlib import Path

import pytest

from dunlin.engine.attention.block_tiles import TileBlocks
from dunlin.engine.attention.deterministic import DeterministicAttention
from dunlin.engine.attention.fused import FusedAttention
from dunlin.engine.attention.native.library import AMX, AMX_PACE
from dunlin.engine.attention.paged import PagedAttention
from dunlin.engine.device.base import cpu_device
from dunlin.engine.process.numerics import engine_numerics, with_chosen_prompts
from dunlin.engine.process.options import EngineOptions
from dunlin.model.kv_dtypes import FP8
from tests.engine.build import load, make_checkpoint

OPTIONS = EngineOptions(Path("/m"), "told-once", 1, 1, 3, 4, 5, kv_bytes=9)


def test_a_device_that_reads_no_fp8_is_refused_with_what_to_do() -> None:
    device = replace(cpu_device(), name="cuda:0", reads_fp8=False)
    with pytest.raises(ValueError, match=r"^cuda:0 reads no KV in float8_e4m3fn: take --kv-dtype auto$"):
        engine_numerics(replace(OPTIONS, narrow_kv=FP8), device)


def test_narrow_kv_is_read_by_torch_on_the_cpu_and_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    device, options = cpu_device(), replace(OPTIONS, narrow_kv=FP8)
    chosen = engine_numerics(options, device)
    assert isinstance(chosen.attention, FusedAttention)
    assert engine_numerics(options, device) is chosen
    assert capsys.readouterr().err.count("KV in float8_e4m3fn") == 1


def test_the_deterministic_mode_says_once_what_attends(capsys: pytest.CaptureFixture[str]) -> None:
    options = replace(OPTIONS, name="exact", deterministic=True, dtype="float32")
    chosen = engine_numerics(options, cpu_device())
    assert isinstance(chosen.attention, DeterministicAttention)
    assert engine_numerics(options, cpu_device()) is chosen
    by = "torch" if isinstance(chosen.attention.blocks, TileBlocks) else "a kernel"
    assert capsys.readouterr().err.count(f"dunlin engine exact: the same bits in any batch: attention by {by}") == 1


def test_pieces_of_attention_are_larger_in_bf16_where_the_kernel_is_quicker() -> None:
    paces = []
    for dtype in ("bfloat16", "float32"):
        attention = engine_numerics(replace(OPTIONS, dtype=dtype), cpu_device()).attention
        if not isinstance(attention, PagedAttention):
            pytest.skip("no attention kernel was built")
        paces.append(attention.kernel.pace)
        is_quick = attention.kernel.level == AMX
    assert paces == [AMX_PACE if is_quick else 1, 1]


def test_what_attends_to_prompts_is_chosen_for_the_model_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decoder = load(make_checkpoint(tmp_path)).decoder
    assert with_chosen_prompts("a", cpu_device(), decoder, pytest.fail) is decoder
    other = replace(decoder.numerics, piece_rows=7)
    device = replace(cpu_device(), choose_prompts=lambda given: (other, f"for {given.config.heads} heads"))
    chosen = with_chosen_prompts("a", device, decoder, lambda: None)
    assert (chosen.numerics, chosen.kv) == (other, decoder.kv)
    assert capsys.readouterr().err == f"dunlin engine a: for {decoder.config.heads} heads\n"
