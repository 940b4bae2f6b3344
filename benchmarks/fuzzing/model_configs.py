"""Held-out models: configurations drawn at random for transformers' configuration classes, weights as it saves them.

    python -m benchmarks.fuzzing.model_configs --minutes 10
    python -m benchmarks.fuzzing.model_configs --first-seed 4711 --trials 1        one again

Each model must be refused by name, or have the logits of transformers within 1e-4 of the greatest. A seed whose model
transformers itself cannot make, or compute, proves nothing and is counted apart.
"""

import json
import sys
import tempfile
import time
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
import transformers

from benchmarks.fuzzing.one_text import logits_of
from benchmarks.fuzzing.packed_weights import formats, quantise, shard
from benchmarks.harness import report
from benchmarks.harness.report import BenchmarkResult, say
from dunlin.engine.attention.choice import choose_backend
from dunlin.engine.decoder.numerics import deterministic_numerics, fast_numerics
from dunlin.model.errors import ModelError
from dunlin.model.families import FAMILIES

RELATIVE = 1e-4
VOCABULARY = 64
TOKENS = 90
QUANTISED = 0.3
"""Of the models, those whose weights are stored in fewer bits; of which many have sizes that no writer would pack."""
SLIDING, FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class Verdict:
    """`kind`: equal, refused, no oracle, or DIFFERENT; `what` tells more."""

    kind: str
    what: str = ""


def draw_values(random: Random, family: str) -> dict[str, Any]:
    """A configuration: sizes that fit each other, and any of all families' options."""
    heads = random.choice([1, 2, 4, 6])
    layers = random.choice([1, 2, 3])
    values: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": heads * random.choice([8, 10, 16]),
        "intermediate_size": random.choice([24, 40]),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": random.choice([each for each in (1, 2, 3, 4, 6) if heads % each == 0]),
        "max_position_embeddings": random.choice([64, 128, 4096]),
        "rms_norm_eps": random.choice([1e-6, 1e-5, 1e-2]),
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": 1,
    }
    options = _options(random, layers)
    own = [key for key in options if key in getattr(transformers, _config_name(family)).__dataclass_fields__]
    chosen = random.sample(own, random.randint(0, len(own)))
    chosen += random.sample(sorted(options), 1) if random.random() < 0.3 else []
    values |= {key: options[key] for key in chosen}
    if family in ("mixtral", "qwen3_moe"):
        values |= {key: options[key] for key in ("num_local_experts", "num_experts", "num_experts_per_tok")}
        values["moe_intermediate_size"] = random.choice([16, 24])
    if random.random() < 0.6:
        values |= _rope(random, family)
    return values


def _options(random: Random, layers: int) -> dict[str, Any]:
    experts = random.choice([2, 3, 5])
    return {
        "head_dim": random.choice([None, 4, 8, 12, 18, 32, 64]),
        "tie_word_embeddings": random.choice([True, False]),
        "attention_bias": random.choice([True, False]),
        "mlp_bias": random.choice([True, False]),
        "hidden_act": random.choice(["silu", "gelu", "relu", "gelu_pytorch_tanh", "gelu_new", "mish"]),
        "hidden_activation": random.choice(["silu", "gelu_pytorch_tanh", "gelu"]),
        "sliding_window": random.choice([None, 1, 5, 33, 80, 4096]),
        "use_sliding_window": random.choice([True, False]),
        "max_window_layers": random.choice([0, 1, 2, 28]),
        "layer_types": random.choice([None, [random.choice([SLIDING, FULL]) for _ in range(layers)]]),
        "sliding_window_pattern": random.choice([1, 2, 3]),
        "query_pre_attn_scalar": random.choice([1, 7, 64, 256]),
        "attn_logit_softcapping": random.choice([None, 0.5, 5.0, 50.0]),
        "final_logit_softcapping": random.choice([None, 1.0, 30.0]),
        "use_bidirectional_attention": random.choice([None, False, False, False, True]),
        "num_local_experts": experts,
        "num_experts": experts,
        "num_experts_per_tok": random.randint(1, experts),
        "norm_topk_prob": random.choice([True, False]),
        "decoder_sparse_step": random.choice([1, 2]),
        "mlp_only_layers": random.choice([None, [], [0], [1]]),
    }


def _rope(random: Random, family: str) -> dict[str, Any]:
    """In the old spelling or the new, nested for the family that nests."""
    kinds = [*FAMILIES[family].rope_kinds] * 4
    kind = random.choice([*kinds, "default", "linear", "dynamic", "llama3", "yarn", "longrope", "proportional"])
    factor = random.choice([1.0, 2.0, 8.0])
    original = random.choice([16, 64, 100])
    given: dict[str, Any] = {"rope_type": kind}
    if kind != "default":
        given["factor"] = factor
    if kind in ("llama3", "yarn", "longrope"):
        given["original_max_position_embeddings"] = original
    if kind == "llama3":
        given |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
    if kind == "yarn":
        more = {"beta_fast": 16, "beta_slow": 2, "mscale": 0.7, "mscale_all_dim": 0.9, "truncate": False}
        given |= {key: more[key] for key in random.sample(sorted(more), random.randint(0, 5))}
    if kind == "longrope":
        count = random.choice([4, 5, 6, 8])
        given |= {"short_factor": [1.0 + 0.2 * at for at in range(count)], "long_factor": [4.0] * count}
    if kind in ("yarn", "longrope") and random.random() < 0.3:
        given["attention_factor"] = 1.3
    if random.random() < (0.5 if family == "phi3" else 0.03):
        given["partial_rotary_factor"] = random.choice([0.5, 0.75])
    theta = random.choice([100.0, 10_000.0, 5e5])
    if family == "gemma3_text" and random.random() < 0.8:
        nested = {FULL: {**given, "rope_theta": theta}, SLIDING: {"rope_type": "default", "rope_theta": 1000.0}}
        return {"rope_parameters": nested}
    if random.random() < 0.5:
        return {"rope_parameters": {**given, "rope_theta": theta}}
    return {"rope_scaling": given, "rope_theta": theta}


def _config_name(family: str) -> str:
    return FAMILIES[family].architecture.replace("ForCausalLM", "Config" if family != "gemma3_text" else "TextConfig")


def judge(seed: int, folder: Path) -> Verdict:
    """Make the model of a seed, and compare."""
    random = Random(seed)
    family = random.choice(sorted(FAMILIES))
    values = draw_values(random, family)
    tokens = [random.randrange(VOCABULARY) for _ in range(TOKENS)]
    try:
        model = _make(folder, family, values, seed, is_raw=random.random() < 0.5)
        storing = Random(f"storing {seed}")  # of its own: seeds from before mean the same models
        if storing.random() < QUANTISED:
            model, folder = _quantised(folder, storing)
    except Exception as error:  # whatever it is that transformers does not make
        return Verdict("no oracle", f"{type(error).__name__}: {str(error)[:100]}")
    numerics = deterministic_numerics() if random.random() < 0.2 else fast_numerics(choose_backend()[0])
    try:
        ours = logits_of(folder, tokens, numerics)
    except ModelError as error:
        return Verdict("refused", error.what)
    try:
        with torch.inference_mode():
            theirs = model(torch.tensor([tokens[: len(ours)]])).logits[0]
    except Exception as error:
        return Verdict("no oracle", f"{type(error).__name__}: {str(error)[:100]}")
    if not theirs.isfinite().all():
        return Verdict("no oracle", "its logits are no numbers")
    worst = float((ours - theirs).abs().max() / theirs.abs().max())
    return Verdict("equal") if worst < RELATIVE else Verdict("DIFFERENT", f"{worst:.1e} {family} {json.dumps(values)}")


def _make(folder: Path, family: str, values: dict[str, Any], seed: int, is_raw: bool) -> Any:
    """A checkpoint with random weights as transformers saves it, loaded again. `is_raw`: its config.json has the drawn
    values alone, as old files have.
    """
    architecture = FAMILIES[family].architecture
    config = getattr(transformers, _config_name(family))(**values)
    model = getattr(transformers, architecture)(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_matrix = parameter.ndim > 1
            parameter.copy_(noise * 1.5 * parameter.shape[-1] ** -0.5 if is_matrix else parameter + 0.2 * noise)
    model.save_pretrained(folder, max_shard_size="20KB" if seed % 3 == 0 else "1GB")
    if is_raw:
        written = {**values, "model_type": family, "architectures": [architecture]}
        (folder / "config.json").write_text(json.dumps(written))
    return _read(folder)


def _quantised(folder: Path, random: Random) -> tuple[Any, Path]:
    """The same model stored in a format of quantised weights, and as transformers computes what that stands for."""
    known = formats(random.choice([8, 16, 24, 32]))
    packed, plain = folder / "packed", folder / "plain"
    quantise(folder, packed, plain, known[random.choice(sorted(known))])
    if random.random() < 0.3:
        shard(packed)
    return _read(plain), packed


def _read(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
    )


def run(first_seed: int, trials: int, seconds: float) -> BenchmarkResult:
    """So many seeds, or for so long."""
    outcome = BenchmarkResult("held-out models against transformers")
    kinds: Counter[str] = Counter()
    refusals: Counter[str] = Counter()
    began = time.monotonic()
    seed = first_seed
    while seed - first_seed < trials and time.monotonic() - began < seconds:
        with tempfile.TemporaryDirectory() as folder:
            verdict = judge(seed, Path(folder))
        kinds[verdict.kind] += 1
        if verdict.kind == "DIFFERENT":
            say(f"seed {seed}: {verdict.kind}: {verdict.what}")
        if verdict.kind in ("refused", "no oracle"):
            refusals[f"{verdict.kind}: {verdict.what[:70]}"] += 1
        seed += 1
    for what, count in refusals.most_common(40):
        say(f"{count:5} {what}")
    outcome.figures["models: equal, refused, no oracle, different"] = tuple(
        kinds[kind] for kind in ("equal", "refused", "no oracle", "DIFFERENT")
    )
    outcome.expect(not kinds["DIFFERENT"], f"{kinds['DIFFERENT']} models have other logits than transformers")
    outcome.expect(kinds["equal"] > 0, "no model was compared")
    return outcome


def main(argv: list[str] | None = None) -> int:
    """The command."""
    arguments = report.parser(__doc__ or "")
    arguments.add_argument("--minutes", type=float, default=10.0)
    arguments.add_argument("--trials", type=int, default=sys.maxsize)
    arguments.add_argument("--first-seed", type=int, default=1)
    given = arguments.parse_args(argv)
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    torch.set_num_threads(1)
    return report.finish(run(given.first_seed, given.trials, given.minutes * 60), given.json)


if __name__ == "__main__":
    sys.exit(main())
