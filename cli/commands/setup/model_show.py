"""`dunlin model show DIR`: what a checkpoint is, and whether dunlin can serve it: all that its loaders would refuse."""

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.common.errors import FAILED, OK, USAGE, CliError
from cli.common.options import Subparsers, add_json
from cli.common.output import as_json, table
from dunlin.model.builtin import models_folder, resolve_model
from dunlin.model.config_reader import read_json
from dunlin.model.errors import ModelError
from dunlin.model.families import FAMILIES
from dunlin.model.features import features_of
from dunlin.model.lora.config import is_adapter
from dunlin.runtime.extras import missing_package_text

if TYPE_CHECKING:
    from cli.launch.checkpoint_check import CheckpointFindings
    from dunlin.model.checkpoint_headers import TensorEntry

_DESCRIPTION = """\
Print what a checkpoint is: architecture, sizes, bytes of weights and of KV, and whether dunlin can serve it.
The checks are those of a start: config.json, the names, shapes and dtypes of all tensors, the tokenizer beside the
vocabulary, the end tokens and the chat template. Of the weights only the headers are read.
Of a LoRA adapter (as PEFT writes it): what it changes, its memory, and whether dunlin can serve it with its model.
Exit code 1: it cannot be served, and every reason is listed.

examples:
  dunlin model show /models/llama
  dunlin model show /models/llama --json
  dunlin model show builtin:tiny
  dunlin model show ./my-adapter --base /models/llama
"""
NO_END_TOKEN = "none: texts go on to their limit (`eos_token_id` in generation_config.json names one)"
_MOST_LINES = 20
"""Of what is wrong; `--json` has all of it."""
# Names of the same things in the files of other model families, so that those are shown too.
_NAMES = {
    "layers": ("num_hidden_layers", "n_layer", "num_layers"),
    "hidden": ("hidden_size", "n_embd", "d_model"),
    "heads": ("num_attention_heads", "n_head"),
    "kv_heads": ("num_key_value_heads",),
    "head_dim": ("head_dim",),
    "vocabulary": ("vocab_size",),
    "max_positions": ("max_position_embeddings", "n_positions", "n_ctx"),
}


@dataclass(frozen=True, slots=True)
class CheckpointSummary:
    """What was found; None: the files do not say. `problems` empty: dunlin can serve it."""

    directory: str
    architecture: str
    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    vocabulary: int | None
    max_positions: int | None
    served_positions: int | None
    features: tuple[str, ...]
    quantization: str | None
    dtypes: dict[str, int]
    files: int
    parameters: int
    weight_bytes: int
    kv_bytes_per_token_bf16: int | None
    kv_bytes_per_token_fp32: int | None
    end_tokens: tuple[int, ...]
    tokenizer: bool
    chat_template: bool
    servable: bool
    problems: tuple[str, ...]


def add(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand, below `dunlin model`."""
    parser = commands.add_parser(
        "show",
        help="say what a checkpoint is, and whether it can be served",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model", metavar="NAME|DIR", help="builtin:tiny, builtin:chat, or the directory of a checkpoint or an adapter"
    )
    parser.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="where built-in models are kept (default: as for `dunlin up`)"
    )
    parser.add_argument(
        "--base", metavar="NAME|DIR", help="of a LoRA adapter: its model (default: the one that its files name)"
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print it."""
    from cli.launch.cluster_state import default_data_dir

    cache = models_folder(arguments.data_dir or default_data_dir())
    try:
        directory = resolve_model(arguments.model, cache)
        if is_adapter(directory):
            return _show_adapter(directory, arguments.base, cache, as_data=arguments.json)
        shown = summarize_checkpoint(directory)
    except ModelError as error:
        raise CliError(str(error), USAGE) from None
    print(as_json(shown) if arguments.json else render(shown))
    return OK if shown.servable else FAILED


def _show_adapter(directory: Path, base: str | None, cache: Path, *, as_data: bool) -> int:
    try:
        from cli.commands.setup.adapter_show import base_named_by, render_adapter, summarize_adapter
    except ModuleNotFoundError as error:
        raise CliError(missing_package_text(error.name), USAGE) from None
    shown = summarize_adapter(directory, resolve_model(base or base_named_by(directory), cache))
    print(as_json(shown) if as_data else "\n".join([*render_adapter(shown), *_listed(shown.problems)]))
    return OK if shown.servable else FAILED


def summarize_checkpoint(directory: Path) -> CheckpointSummary:
    """Look at a checkpoint.

    Raises:
        ModelError: no directory, or no readable config.json: there is nothing to show.
        CliError: this installation cannot read a tokenizer.
    """
    if not directory.is_dir():
        raise ModelError(directory, "no such directory", "give a directory with a Hugging Face checkpoint")
    values = read_json(directory / "config.json")
    try:
        from cli.launch.checkpoint_check import examine_checkpoint
    except ModuleNotFoundError as error:
        raise CliError(missing_package_text(error.name), USAGE) from None
    found = examine_checkpoint(directory)
    sizes = _sizes(values)
    return CheckpointSummary(
        directory=str(directory),
        architecture=_architecture(values),
        **sizes,
        served_positions=found.config.max_positions if found.config else None,
        features=tuple(features_of(found.config)) if found.config else (),
        quantization=str(found.config.quantization) if found.config and found.config.quantization else None,
        dtypes=_dtypes(found.entries.values()),
        files=len({entry.path for entry in found.entries.values()}),
        parameters=_parameters(found),
        weight_bytes=sum(entry.size_bytes for entry in found.entries.values()),
        kv_bytes_per_token_bf16=_kv_bytes(sizes, 2),
        kv_bytes_per_token_fp32=_kv_bytes(sizes, 4),
        end_tokens=found.config.eos_ids if found.config else (),
        tokenizer=(directory / "tokenizer.json").is_file(),
        chat_template=_has_template(directory),
        servable=not found.faults,
        problems=tuple(str(fault).removeprefix(f"{directory}/") for fault in found.faults),
    )


def _sizes(values: Mapping[str, Any]) -> dict[str, int | None]:
    sizes = {name: _whole(values, names) for name, names in _NAMES.items()}
    sizes["kv_heads"] = sizes["kv_heads"] or sizes["heads"]
    if not sizes["head_dim"] and sizes["hidden"] and sizes["heads"]:
        sizes["head_dim"] = sizes["hidden"] // sizes["heads"]
    return sizes


def render(shown: CheckpointSummary) -> str:
    """As two columns, and what stands in the way below."""
    dtypes = ", ".join(f"{kind} ({count} tensors)" for kind, count in shown.dtypes.items())
    kv = [_text(size, " bytes") for size in (shown.kv_bytes_per_token_bf16, shown.kv_bytes_per_token_fp32)]
    plural = "" if shown.files == 1 else "s"
    rows = [
        ("directory", shown.directory),
        ("architecture", shown.architecture),
        ("layers", _text(shown.layers)),
        ("hidden size", _text(shown.hidden)),
        ("heads", f"{_text(shown.heads)} query, {_text(shown.kv_heads)} key-value, {_text(shown.head_dim)} wide"),
        ("vocabulary", _text(shown.vocabulary)),
        ("positions", _positions(shown)),
        ("features", ", ".join(shown.features) or "none beyond Llama's"),
        ("weights", f"{shown.parameters:,} parameters, {_size(shown.weight_bytes)} in {shown.files} file{plural}"),
        ("quantised", _quantised(shown)),
        ("dtype", dtypes or "unknown"),
        ("KV per token", f"{kv[0]} in bf16, {kv[1]} in fp32"),
        ("end tokens", ", ".join(map(str, shown.end_tokens)) or NO_END_TOKEN),
        ("tokenizer", "there" if shown.tokenizer else "missing"),
        ("chat template", "there" if shown.chat_template else "none: a plain one is used"),
        ("dunlin serves it", "yes" if shown.servable else "no:"),
    ]
    lines = [line.rstrip() for line in table(("", ""), rows).splitlines()[1:]]
    return "\n".join([*lines, *_listed(shown.problems)])


def _parameters(found: "CheckpointFindings") -> int:
    """Numbers that are computed with: of quantised weights not those that are stored."""
    from dunlin.model.checkpoint_tensors import wanted_tensors

    if found.config is not None and found.config.quantization is not None:
        return sum(prod(shape) for _, shape in wanted_tensors(found.config))
    return sum(prod(entry.shape) for entry in found.entries.values())


def _quantised(shown: CheckpointSummary) -> str:
    if shown.quantization is None:
        return "no"
    return f"{shown.quantization}; dequantised when loaded: {_size(2 * shown.parameters)} in bf16"


def _positions(shown: CheckpointSummary) -> str:
    served = shown.served_positions
    if served is None or shown.max_positions is None or served == shown.max_positions:
        return _text(shown.max_positions)
    if served > shown.max_positions:
        return f"{_text(shown.max_positions)}, stretched to {served:,} by yarn"
    return f"{_text(shown.max_positions)}, of which dunlin serves {served:,}: beyond, its rope has other frequencies"


def _listed(problems: tuple[str, ...]) -> list[str]:
    lines = [f"  - {problem}" for problem in problems[:_MOST_LINES]]
    rest = len(problems) - len(lines)
    return [*lines, f"  - and {rest} more, which --json lists"] if rest else lines


def _text(value: int | None, unit: str = "") -> str:
    return "?" if value is None else f"{value:,}{unit}"


def _size(size_bytes: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes / 1024:.1f} KiB"


def _whole(values: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    found = next((values[name] for name in names if name in values), None)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _architecture(values: Mapping[str, Any]) -> str:
    named = values.get("architectures")
    listed = [str(one) for one in named] if isinstance(named, list) else []
    kind = values.get("model_type")
    known = FAMILIES[kind].architecture if isinstance(kind, str) and kind in FAMILIES else f"model_type {kind}"
    return ", ".join(listed) or known


def _kv_bytes(sizes: dict[str, int | None], item_bytes: int) -> int | None:
    layers, heads, wide = sizes["layers"], sizes["kv_heads"], sizes["head_dim"]
    return 2 * layers * heads * wide * item_bytes if layers and heads and wide else None


def _has_template(directory: Path) -> bool:
    if (directory / "chat_template.jinja").is_file():
        return True
    path = directory / "tokenizer_config.json"
    try:
        return bool(read_json(path).get("chat_template")) if path.is_file() else False
    except ModelError:
        return False


def _dtypes(entries: "Iterable[TensorEntry]") -> dict[str, int]:
    counts: dict[str, int] = {}
    for entry in entries:
        counts[entry.dtype] = counts.get(entry.dtype, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
