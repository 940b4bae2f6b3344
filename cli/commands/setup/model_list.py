"""`dunlin model list`: the model families that dunlin runs, with their options; `--markdown` is docs/models.md."""

import argparse
from collections.abc import Sequence

from cli.common.errors import OK
from cli.common.options import Subparsers
from cli.common.output import table
from dunlin.model.config import ACTIVATIONS
from dunlin.model.families import ROPE_KINDS
from dunlin.model.features import family_rows, quantization_rows, refused_rows

METHOD_HEADINGS = ("quant_method", "read", "refused by name")
REFUSED_HEADINGS = ("quant_method", "why it is refused")
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
- Kinds of rope: {kinds}. With yarn, texts may have
  `original_max_position_embeddings` x `factor` tokens, where that is more than `max_position_embeddings`.

| models | `model_type` |
|---|---|
| Llama 2 and 3, Yi, and others with Llama's architecture | `llama` |
| Mistral 7B | `mistral` |
| Qwen2, Qwen2.5 | `qwen2` |
| Qwen3; Qwen3-MoE | `qwen3`; `qwen3_moe` |
| Phi-3 mini and medium, Phi-4, Phi-4-mini | `phi3` |
| Gemma 2; Gemma 3, text alone (270M, 1B) | `gemma2`; `gemma3_text` |
| Mixtral | `mixtral` |

## Built-in models

`builtin:tiny` has random weights, made on first use: for tests and measurements. `builtin:chat` ships in the package
with 4.2 million trained weights (`dunlin/model/chat`, under 10 MB): it writes short English sentences, answers some
simple questions, tells short stories and calls tools, so that one can read what a cluster writes, not rely on it. What
it says must not be trusted. `examples/train_builtin` made it, from dialogs of its own and from WordNet 3.0 (Debian's
package `wordnet-base` 1:3.0-37, under WordNet's licence, which `dunlin/model/chat/LICENSE` repeats).

## Quantised checkpoints

Weights that are stored in fewer bits are read as `quantization_config` (or `compression_config`) of `config.json`
says, and **dequantised when they are loaded**: each is `(q - zero) * scale`, exact in float32, rounded once to the
dtype of the engine. So a quantised checkpoint takes the memory and the time of the dense model, and gives its answers
from the weights that it stores; digests name what is computed: a dense checkpoint of the same numbers has the same.

{methods}

Activations and KV are not quantised, whatever the file says (`input_activations`, `activation_scheme`,
`kv_cache_scheme`; scales of them in the files are not read). Of w8a8 and fp8 models the answers are thus those of the
weights alone: they differ a little from kernels that also round activations, as vLLM's do. Which products are
quantised the tensors show: what `modules_to_not_convert`, `ignored_layers` or `ignore` leave out lies there as plain
numbers. Quantised embeddings, and tensors of a quantised product that no layout above has, are refused by name; so is
what only reading can show: groups that are not there, and zero-points that readers of GPTQ take differently.

{refused}

## LoRA adapters

`dunlin up --model DIR --lora NAME=ADAPTER` (may be repeated; `cluster.lora` in settings, of dispatchers and instances
alike) serves adapters beside their model, as PEFT writes them: `adapter_config.json` and `adapter_model.safetensors`.
Requests name one as their `model`, in the SDK, over HTTP and in batch jobs; `/v1/models` lists them with the model as
their `parent`. `dunlin model show ADAPTER` says what an adapter changes, its memory, and every reason against it.

- **Read**: any linear layers of attention, and of the MLP where that has no experts; `r`, `lora_alpha`, `use_rslora`,
  `rank_pattern`, `alpha_pattern`, `target_modules` (names, a regular expression, `all-linear`), `exclude_modules`,
  `layers_to_transform`. Modules that the model has fused (Phi-3's) and those that the engine fuses are the same to
  them, and so are quantised models, whose weights are dequantised when they are loaded.
- **Refused by name**: DoRA and other variants, `modules_to_save`, biases, embeddings and the output matrix, experts
  and routers, layer replication, adapters that change the model's own weights when they are loaded (`init_lora_weights`
  of PiSSA, OLoRA, CorDA, LoftQ), any key with a value that is not known here, any tensor that the configuration does
  not ask for, and every one that it asks for and that is missing. Tokenizer and chat template are the model's: those in
  an adapter's directory are not read.
- **In one batch**: the product with the model's weights is over all rows; then each adapter adds its own over the rows
  that have it. Without adapters nothing is added to a step. In the deterministic mode each adapter is computed over
  whole tiles, so that bits do not depend on the neighbours' adapters.
- **Memory**: all adapters are in the memory of every engine, `rank * (rows + inputs)` numbers a module in the engine's
  dtype; an engine says the sum when it starts. At most 64 adapters, of rank 512 at most. They are read when the engine
  starts: another one, or a changed one, needs a restart. What an adapter adds to a product is one piece of work, so
  great ranks lengthen the way to the next safepoint.
- **KV** of two adapters is never shared: an adapter's digest, of its two files, is part of every prefix's name, in the
  device's cache, in the host tier and in migrations. A request keeps its adapter through preemption, failover,
  migration and elastic groups, whose members must have the same adapters. An instance without the adapter refuses the
  request, and the dispatcher places it elsewhere.
- **Prices**: cost models and the simulator know no adapters; what they add to a step is learnt from the steps served.

## Limits

- **Rope by length.** `dynamic` changes its frequencies beyond `max_position_embeddings`, `longrope` beyond
  `original_max_position_embeddings`. dunlin takes texts up to there: within it, both are as in transformers, KV of a
  prefix is worth the same in every text, and a longer request is refused. A Phi-3 with 128K positions is served with
  4K.
- **Windows.** A layer with a window attends to that window only, in every attention backend and where keys lie at
  other instances; its KV of earlier tokens is kept all the same.
- **Ranks.** `--tp N` needs attention heads, key-value heads and MLP columns that N divides, and a model without
  experts; quantised weights are dequantised whole before they are cut. Embedding and head are in the memory of every
  rank.
- **Experts.** All experts of a layer that is held are in memory. Prices of the shipped cost model exist for models
  without experts; for others, and for what windows save, measure with `dunlin profile`.

## Refused by name

- Quantised weights of other methods and layouts than those above, and weights in GGUF.
- Other architectures, and models that also take images or sound (Gemma 3 from 4B on, for one).
- Settings that change the computation and that a family does not have: biases, soft caps, windows, `layer_types`,
  `partial_rotary_factor`, kinds of rope, activations, `use_bidirectional_attention`.
- Of Gemma 3, a kind of rope that `rope_scaling` calls `type`, or names by layer: transformers 5 computes both without
  scaling.

A checkpoint whose files name no end token (`eos_token_id`) is served as transformers runs it: its texts end at a stop
string or their limit alone. `dunlin model show` and the dispatcher's log say so.

## How it is checked

`tests/engine/test_families.py` compares the logits of small models with random weights with transformers, in float32
and within 1e-4 of the greatest logit: every family, every option at least once and most pairs of them, over 200
tokens; the text whole, in chunks, in batches, alone, and with its work cut as interrupts cut it; with the kernel,
with torch, and in the deterministic mode, whose bits do not change with the steps. `python -m
benchmarks.fuzzing.model_configs --minutes 10` draws configurations from transformers' own configuration classes; each
must come out equal, or be refused; some are stored quantised.

`tests/engine/decoder/quantized` packs small models of every family in every layout above: their weights are bit for
bit those of the dense model, and their logits within 1e-4 of transformers' with it, in one file or in shards. That
the layouts are read as their writers mean them is checked on modules of random bits against AutoAWQ's, AutoGPTQ's,
AutoRound's, compressed-tensors' and transformers' own dequantisers, to the last bit; and every `quant_method` that
transformers knows is either read or in the list of those refused.

`tests/engine/test_adapters.py` compares logits beside other adapters, and beside none, with those of transformers with
`W + scale * B A` in its weights, within 1e-4: whole, cut by columns, with rows that leave and come back, and bit for
bit alone and in company in the deterministic mode. `tests/services/instance/test_adapters.py` looks for KV of another
adapter under pressure and crashes, `tests/cluster/test_adapters.py` asks a cluster by both doors while engines die."""


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
    return _PAGE.format(
        table=_markdown(HEADINGS, family_rows()),
        activations=", ".join(f"`{name}`" for name in ACTIVATIONS),
        kinds=", ".join(ROPE_KINDS),
        methods=_markdown(METHOD_HEADINGS, quantization_rows()),
        refused=_markdown(REFUSED_HEADINGS, refused_rows()),
    )


def _markdown(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in (headings, *rows)]
    return "\n".join([lines[0], "|" + "---|" * len(headings), *lines[1:]])
