"""`dunlin model list`: the model families that dunlin runs, with their options; `--markdown` is docs/models.md."""

import argparse

from cli.common.errors import OK
from cli.common.options import Subparsers
from cli.common.output import table
from dunlin.model.config import ACTIVATIONS
from dunlin.model.families import ROPE_KINDS
from dunlin.model.features import family_rows

HEADINGS = ("model_type", "architecture", "has", "may have", "kinds of rope")
_PAGE = """\
# Models

<!-- Made by `dunlin model list --markdown > docs/models.md`; a test compares. -->

dunlin runs checkpoints in Hugging Face's format (`config.json`, safetensors in one file or in shards,
`tokenizer.json`) of these families. `dunlin model show DIR` says of one checkpoint what it has, and whether it can be
served; what cannot is refused by name when it is loaded, with the key of `config.json`.

{table}

A key that `config.json` leaves out has the value that transformers 5 gives it. Common to all: any number of query
heads per key-value head (MHA, GQA, MQA), heads of any width that can be turned, up to 512, an output matrix of its
own or the embedding's. Weights may be float32, float16, bfloat16 or float64; the engine computes in float32 or
bfloat16.

- Activations: {activations}.
- Kinds of rope: {kinds}.

| models | `model_type` |
|---|---|
| Llama 2 and 3, Yi, and others with Llama's architecture | `llama` |
| Mistral 7B | `mistral` |
| Qwen2, Qwen2.5 | `qwen2` |
| Qwen3; Qwen3-MoE | `qwen3`; `qwen3_moe` |
| Phi-3 mini and medium, Phi-4, Phi-4-mini | `phi3` |
| Gemma 2; Gemma 3, text alone (270M, 1B) | `gemma2`; `gemma3_text` |
| Mixtral | `mixtral` |

## Limits

- **Rope by length.** `dynamic` changes its frequencies beyond `max_position_embeddings`, `longrope` beyond
  `original_max_position_embeddings`. dunlin takes texts up to there: within it, both are as in transformers, KV of a
  prefix is worth the same in every text, and a longer request is refused. A Phi-3 with 128K positions is served with
  4K.
- **Windows.** A layer with a window attends to that window only, in every attention backend and where keys lie at
  other instances; its KV of earlier tokens is kept all the same.
- **Experts.** All experts of a layer that is held are in memory. Prices of the shipped cost model exist for models
  without experts; for others, and for what windows save, measure with `dunlin profile`.

## Refused by name

- Quantised weights (`quantization_config`, `compression_config`), and tensors of integer or 8-bit types.
- Other architectures, and models that also take images or sound (Gemma 3 from 4B on, for one).
- Settings that change the computation and that a family does not have: biases, soft caps, windows, `layer_types`,
  `partial_rotary_factor`, kinds of rope, activations, `use_bidirectional_attention`.

## How it is checked

`tests/engine/test_families.py` compares the logits of small models with random weights with transformers, in float32
and within 1e-4 of the greatest logit: every family, every option at least once and most pairs of them, over 200
tokens; the text whole, in chunks, in batches, alone, and with its work cut as interrupts cut it; with the kernel,
with torch, and in the deterministic mode, whose bits do not change with the steps. `python -m
benchmarks.fuzzing.model_configs --minutes 10` draws configurations from transformers' own configuration classes; each
must come out equal, or be refused."""


def add(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand, below `dunlin model`."""
    parser = commands.add_parser("list", help="the model families that dunlin runs", description=__doc__)
    parser.add_argument("--markdown", action="store_true", help="as docs/models.md")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print it."""
    print(page() if arguments.markdown else table(HEADINGS, family_rows()))
    return OK


def page() -> str:
    """docs/models.md."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (HEADINGS, *family_rows())]
    rule = "|" + "---|" * len(HEADINGS)
    activations = ", ".join(f"`{name}`" for name in ACTIVATIONS)
    return _PAGE.format(
        table="\n".join([lines[0], rule, *lines[1:]]), activations=activations, kinds=", ".join(ROPE_KINDS)
    )
