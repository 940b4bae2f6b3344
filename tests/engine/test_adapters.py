"""LoRA adapters: the logits of `transformers` with W + scale B A in its weights, beside others and beside none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.fuzzing.packed_weights import formats, quantise
from dunlin.engine.attention.base import local_row
from dunlin.engine.attention.spans import slot_span
from dunlin.engine.decoder.decoder import Decoder, DecoderBatch
from dunlin.engine.decoder.iteration import forward
from dunlin.engine.decoder.lora.loading import load_adapters
from dunlin.engine.decoder.numerics import Numerics, deterministic_numerics, fast_numerics
from dunlin.engine.decoder.row_progress import RowProgress
from dunlin.model.lora.adapter import load_adapter
from tests.engine.adapter_files import ALL, ATTENTION, merge, write_adapter
from tests.engine.build import load
from tests.engine.test_families import LENGTH, SLOTS, TEXTS, assert_equal, begin, finish, make, whole_batch

transformers = pytest.importorskip("transformers")

PHI3 = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
CASES: dict[str, tuple[str, tuple[str, ...], dict[str, Any]]] = {
    "llama": ("llama-mha-biases", ALL, {}),
    "qwen2-mixed-ranks": (
        "qwen2-window-from-a-layer",
        ALL,
        {"ranks": {"q_proj": 3, "down_proj": 7}, "alpha_pattern": {"v_proj": 3.0, r"layers\.1\.mlp\.up_proj": 31}},
    ),
    "qwen3-rslora": ("qwen3", ("q_proj", "v_proj"), {"use_rslora": True, "rank": 9}),
    "phi3-fused": ("phi3-window", PHI3, {}),
    "gemma2-norms": ("gemma2", ALL, {"alpha": 3.0}),
    "gemma3-regex": ("gemma3", ("o_proj", "down_proj"), {"target_modules": r".*\.(o_proj|down_proj)"}),
    "mixtral-attention": ("mixtral-window", ATTENTION, {}),
}


class Trial:
    """A model with two adapters, and its decoder with these."""

    def __init__(self, folder: Path, name: str, numerics: Numerics | None = None) -> None:
        family, targets, options = CASES[name]
        self.model = make(folder, family)
        self.adapters = [
            write_adapter(folder / "one", self.model, targets, seed=1, **options),
            write_adapter(folder / "two", self.model, targets[:1], seed=2, rank=5, alpha=20.0),
        ]
        self._loaded = load(self.model)
        self.decoder = self.with_numerics(numerics or self._loaded.decoder.numerics)

    def with_numerics(self, numerics: Numerics) -> Decoder:
        known = {load_adapter(one, self._loaded.config).digest: one for one in self.adapters}
        adapters = load_adapters(known, self._loaded.config, torch.float32)
        return Decoder(self._loaded.config, self._loaded.weights, self._loaded.decoder.kv, numerics, adapters)

    def oracle(self, adapter: int, text: int) -> Tensor:
        """Logits `[tokens, vocab]` of a text with adapter number `adapter`; 0: with none."""
        model = transformers.AutoModelForCausalLM.from_pretrained(
            self.model, dtype=torch.float32, attn_implementation="eager"
        )
        if adapter:
            model.load_state_dict(merge(model.state_dict(), self.adapters[adapter - 1]))
        with torch.inference_mode():
            logits: Tensor = model(torch.tensor([TEXTS[text]])).logits[0]
        return logits


def batch_of(*numbers: int) -> DecoderBatch:
    """Each text with the adapter of that number."""
    numbers_of = torch.tensor(numbers).repeat_interleave(LENGTH)
    return replace(whole_batch(*range(len(numbers))), adapters=numbers_of)


@pytest.mark.parametrize("name", sorted(CASES))
def test_logits_are_those_of_the_merged_model_beside_others(tmp_path: Path, name: str) -> None:
    trial = Trial(tmp_path, name)
    for numbers in ((1, 2), (0, 1)):
        theirs, batch = [trial.oracle(number, text) for text, number in enumerate(numbers)], batch_of(*numbers)
        assert_equal(forward(trial.decoder, batch).view(2, LENGTH, -1), theirs, f"whole {numbers}")
        cut = finish(begin(trial.decoder, batch), trial.decoder).view(2, LENGTH, -1)
        assert_equal(cut, theirs, f"cut by columns {numbers}")
        for numerics in (fast_numerics("torch"), deterministic_numerics()):
            ours = forward(trial.with_numerics(numerics), batch).view(2, LENGTH, -1)
            assert_equal(ours, theirs, f"{numbers} {numerics}")


def test_adapters_change_the_logits_by_more_than_the_tolerance(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "llama")
    plain, one, two = (trial.oracle(number, 0) for number in range(3))
    for first, second in ((plain, one), (plain, two), (one, two)):
        assert float((first - second).abs().max() / first.abs().max()) > 0.05


@pytest.mark.parametrize("name", ["llama", "gemma3-regex", "mixtral-attention"])
def test_deterministic_bits_do_not_depend_on_the_neighbours_adapters(tmp_path: Path, name: str) -> None:
    decoder = Trial(tmp_path, name, deterministic_numerics()).decoder
    alone = forward(decoder, replace(batch_of(1)))
    plain = forward(decoder, whole_batch(0))
    for neighbour in range(3):
        assert torch.equal(forward(decoder, batch_of(1, neighbour))[:LENGTH], alone), neighbour
        assert torch.equal(forward(decoder, batch_of(0, neighbour))[:LENGTH], plain), neighbour


@pytest.mark.parametrize("name", ["llama", "gemma2-norms"])
def test_rows_that_leave_and_come_back_keep_their_adapters(tmp_path: Path, name: str) -> None:
    decoder = Trial(tmp_path, name).decoder
    theirs = forward(decoder, batch_of(1, 2)).view(2, LENGTH, -1)
    came_back = 0
    for after in range(1, 400, 41):
        iteration = begin(decoder, batch_of(1, 2))
        with torch.inference_mode():
            for _ in range(after):
                iteration.advance()
            progress: RowProgress = iteration.leave(0)
        assert_equal([finish(iteration, decoder)], theirs[1:], f"the other row, after {after}")
        if progress.layer < decoder.config.layers:
            again = begin(decoder, batch_of(1), [progress])
            assert_equal([finish(again, decoder)], theirs[:1], f"the row that left after {after} pieces")
            came_back += 1
    assert came_back > 5


def test_bf16_is_near_the_merged_model(tmp_path: Path) -> None:
    trial = Trial(tmp_path, "llama")
    config = load(trial.model, dtype="bfloat16")
    known = {load_adapter(one, config.config).digest: one for one in trial.adapters}
    decoder = config.decoder.with_adapters(load_adapters(known, config.config, torch.bfloat16))
    ours = forward(decoder, batch_of(1, 2)).view(2, LENGTH, -1)
    for text, number in enumerate((1, 2)):
        exact = trial.oracle(number, text)
        assert float((ours[text] - exact).abs().max() / exact.abs().max()) < 0.05


def test_few_rows_in_bf16_are_near_the_merged_model(tmp_path: Path) -> None:
    """As few as kernels of our own take, and ranks that are no multiple of a vector."""
    trial = Trial(tmp_path, "llama")
    loaded = load(trial.model, dtype="bfloat16")
    known = {load_adapter(one, loaded.config).digest: one for one in trial.adapters}
    decoder = loaded.decoder.with_adapters(load_adapters(known, loaded.config, torch.bfloat16))
    whole = batch_of(1, 2)
    rows = [local_row(text * 3, text * 3 + 3, slot_span(range(3), SLOTS[text][:3])) for text in (0, 1)]
    picked = torch.tensor([*range(3), *range(LENGTH, LENGTH + 3)])
    tokens, positions, slots = (each.index_select(0, picked) for each in (whole.tokens, whole.positions, whole.slots))
    assert whole.adapters is not None
    few = DecoderBatch(tokens, positions, slots, rows, torch.arange(6), whole.adapters.index_select(0, picked))
    ours = forward(decoder, few).view(2, 3, -1)
    for text, number in enumerate((1, 2)):
        exact = trial.oracle(number, text)[:3]
        assert float((ours[text] - exact).abs().max() / exact.abs().max()) < 0.05


def test_a_quantised_model_has_adapters_too(tmp_path: Path) -> None:
    """Its weights are dequantised: with an adapter it says what the dense model of the same numbers says."""
    trial = Trial(tmp_path, "qwen3-rslora")
    quantise(trial.model, tmp_path / "packed", tmp_path / "plain", formats(4)["gptq"])
    found = []
    for name in ("packed", "plain"):
        loaded = load(tmp_path / name)
        known = {load_adapter(one, loaded.config).digest: one for one in trial.adapters}
        decoder = loaded.decoder.with_adapters(load_adapters(known, loaded.config, torch.float32))
        found.append(forward(decoder, batch_of(1, 2)))
    assert torch.equal(*found)
