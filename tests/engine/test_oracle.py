"""The same tokens as `transformers`: a choice may differ from the oracle's best only within epsilon of its score."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.engine.build import SHAPES, Sequences, load, make_checkpoint

transformers = pytest.importorskip("transformers")

# Of logits whose standard deviation is 3: rounding noise, far below any difference that means something.
EPSILON = {"float32": 1e-3, "bfloat16": 0.5}
CHUNK = 32
PROMPTS = {0: 131, 1: 5, 2: 97}
GENERATED = 24


@pytest.fixture(scope="module", params=sorted(SHAPES))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    family, overrides = SHAPES[request.param]
    return make_checkpoint(tmp_path_factory.mktemp("model"), family, seed=3, **overrides)


def schedule(tokens: dict[int, list[int]]) -> Iterator[list[tuple[int, int]]]:
    """Steps as (sequence, stop): prompts in chunks, each joining later, so that prefill and decode rows share steps."""
    done = dict.fromkeys(tokens, 0)
    step = 0
    while any(done[i] < PROMPTS[i] + GENERATED for i in tokens):
        parts = []
        for i in tokens:
            if step >= 2 * i and done[i] < PROMPTS[i] + GENERATED:
                done[i] = min(done[i] + CHUNK, PROMPTS[i]) if done[i] < PROMPTS[i] else done[i] + 1
                parts.append((i, done[i]))
        yield parts
        step += 1


def generate(sequences: Sequences, tokens: dict[int, list[int]]) -> int:
    """Greedy texts, in place. Returns how many steps held both kinds of rows."""
    computed, mixed = dict.fromkeys(tokens, 0), 0
    for parts in schedule(tokens):
        logits = sequences.compute([(i, tokens[i][computed[i] : stop], computed[i]) for i, stop in parts])
        kinds = {stop - computed[i] > 1 for i, stop in parts}
        mixed += len(kinds) == 2
        for row, (i, stop) in enumerate(parts):
            computed[i] = stop
            if stop >= PROMPTS[i]:
                tokens[i].append(int(logits[row].argmax()))
    return mixed


def oracle_logits(directory: Path, tokens: list[int], dtype: str) -> Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=getattr(torch, dtype))
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([tokens])).logits[0].float()
    return logits


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_every_token_is_the_oracles_choice(checkpoint: Path, dtype: str, deterministic: bool) -> None:
    if deterministic and dtype != "float32":
        pytest.skip("deterministic mode is fp32")
    generator = torch.Generator().manual_seed(1)
    tokens = {i: torch.randint(0, 512, (n,), generator=generator).tolist() for i, n in PROMPTS.items()}
    # Sequence 1 lies in scattered slots, the others in one extent each.
    slots = {0: list(range(100, 300)), 1: list(range(399, 300, -2)), 2: list(range(500, 700))}
    loaded = load(checkpoint, deterministic, dtype)
    assert generate(Sequences(loaded.decoder, slots), tokens) >= 3
    ties = 0
    for i, text in tokens.items():
        logits = oracle_logits(checkpoint, text, dtype)[PROMPTS[i] - 1 : -1]
        chosen = logits.gather(1, torch.tensor(text[PROMPTS[i] :])[:, None])[:, 0]
        behind = logits.max(dim=-1).values - chosen
        assert float(behind.max()) <= EPSILON[dtype]
        assert len(set(text[PROMPTS[i] :])) > 3, "a text that repeats itself proves little"
        ties += int((behind > 0).sum())
    print(f"{checkpoint.name} {dtype}: {ties} ties among {GENERATED * len(tokens)} tokens")
    assert ties <= (0 if dtype == "float32" else 8)


@pytest.mark.parametrize(
    "scaling",
    [
        {"rope_type": "linear", "factor": 4.0},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ],
)
def test_scaled_rope_agrees_with_the_oracle(tmp_path: Path, scaling: dict[str, object]) -> None:
    import json

    directory = make_checkpoint(tmp_path)
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "rope_scaling": scaling}))
    tokens = torch.randint(0, 512, (150,), generator=torch.Generator().manual_seed(2)).tolist()
    ours = Sequences(load(directory).decoder, {0: list(range(150))}).compute([(0, tokens, 0)])
    theirs = oracle_logits(directory, tokens, "float32")
    assert torch.allclose(ours[0], theirs[-1], atol=1e-3)
