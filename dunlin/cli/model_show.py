"""`dunlin model show DIR`: what a checkpoint is, and whether dunlin can serve it. Reads headers, never a tensor."""

import argparse
import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dunlin.cli.errors import FAILED, OK, USAGE, CliError
from dunlin.cli.options import Subparsers, add_json
from dunlin.cli.output import as_json, table
from dunlin.engine.config import FAMILIES, load_config, read_json
from dunlin.engine.errors import ModelError

_DESCRIPTION = """\
Print what a checkpoint is: architecture, sizes, bytes of weights and of KV, and whether dunlin can serve it.
Only its JSON files and the headers of its safetensors are read. Exit code 1: it cannot be served.

examples:
  dunlin model show /models/llama
  dunlin model show /models/llama --json
"""
_HEADER_BYTES_MAX = 100 << 20
_FLOATS = ("F32", "BF16", "F16")
_ITEM_BYTES = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "BF16": 2, "F16": 2, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_LAYER_PARTS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj")
_MLP_PARTS = ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")
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
class Shown:
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
    dtypes: dict[str, int]
    files: int
    parameters: int
    weight_bytes: int
    kv_bytes_per_token_bf16: int | None
    kv_bytes_per_token_fp32: int | None
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
    parser.add_argument("directory", type=Path, metavar="DIR", help="a Hugging Face checkpoint")
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print it."""
    try:
        shown = show(arguments.directory)
    except ModelError as error:
        raise CliError(str(error), USAGE) from None
    print(as_json(shown) if arguments.json else render(shown))
    return OK if shown.servable else FAILED


def show(directory: Path) -> Shown:
    """Look at a checkpoint.

    Raises:
        ModelError: no directory, or no readable config.json: there is nothing to show.
    """
    if not directory.is_dir():
        raise ModelError(directory, "no such directory", "give a directory with a Hugging Face checkpoint")
    values = read_json(directory / "config.json")
    problems: list[str] = []
    try:
        load_config(directory)
    except ModelError as error:
        problems.append(str(error))
    tensors = _tensors(directory, problems)
    sizes = {name: _whole(values, names) for name, names in _NAMES.items()}
    sizes["kv_heads"] = sizes["kv_heads"] or sizes["heads"]
    if not sizes["head_dim"] and sizes["hidden"] and sizes["heads"]:
        sizes["head_dim"] = sizes["hidden"] // sizes["heads"]
    if not problems:
        problems += _missing(tensors, sizes["layers"] or 0, bool(values.get("tie_word_embeddings")))
    has_tokenizer = (directory / "tokenizer.json").is_file()
    if not has_tokenizer:
        problems.append("tokenizer.json is missing: text cannot become tokens")
    return Shown(
        directory=str(directory),
        architecture=_architecture(values),
        **sizes,
        dtypes=_dtypes(tensors),
        files=len(_files(directory)),
        parameters=sum(math.prod(shape) for _, shape in tensors.values()),
        weight_bytes=sum(math.prod(shape) * _ITEM_BYTES.get(kind, 1) for kind, shape in tensors.values()),
        kv_bytes_per_token_bf16=_kv_bytes(sizes, 2),
        kv_bytes_per_token_fp32=_kv_bytes(sizes, 4),
        tokenizer=has_tokenizer,
        chat_template=_has_template(directory),
        servable=not problems,
        problems=tuple(problems),
    )


def render(shown: Shown) -> str:
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
        ("positions", _text(shown.max_positions)),
        ("weights", f"{shown.parameters:,} parameters, {_size(shown.weight_bytes)} in {shown.files} file{plural}"),
        ("dtype", dtypes or "unknown"),
        ("KV per token", f"{kv[0]} in bf16, {kv[1]} in fp32"),
        ("tokenizer", "yes" if shown.tokenizer else "no"),
        ("chat template", "yes" if shown.chat_template else "no (a plain one is used)"),
        ("dunlin serves it", "yes" if shown.servable else "no:"),
    ]
    lines = [line.rstrip() for line in table(("", ""), rows).splitlines()[1:]]
    return "\n".join([*lines, *(f"  - {problem}" for problem in shown.problems)])


def _text(value: int | None, unit: str = "") -> str:
    return "?" if value is None else f"{value:,}{unit}"


def _size(size_bytes: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes / 1024:.1f} KiB"


def _whole(values: dict[str, Any], names: tuple[str, ...]) -> int | None:
    found = next((values[name] for name in names if name in values), None)
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _architecture(values: dict[str, Any]) -> str:
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


def _files(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.safetensors"))


Tensors = dict[str, tuple[str, tuple[int, ...]]]
"""dtype and shape by name."""


def _tensors(directory: Path, problems: list[str]) -> Tensors:
    files = _files(directory)
    if not files:
        problems.append("no *.safetensors: dunlin reads no other format of weights")
    found: Tensors = {}
    for path in files:
        try:
            found |= _header(path)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
            problems.append(f"{path.name} cannot be read ({error}): fetch it again")
    return found


def _header(path: Path) -> Tensors:
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > min(size_bytes - 8, _HEADER_BYTES_MAX):
            raise ValueError(f"it claims a header of {length} bytes in a file of {size_bytes}")
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    stop = max((int(one["data_offsets"][1]) for one in header.values()), default=0)
    if 8 + length + stop > size_bytes:
        raise ValueError(f"it is truncated: {size_bytes} of {8 + length + stop} bytes")
    return {name: (str(one["dtype"]), tuple(map(int, one["shape"]))) for name, one in header.items()}


def _dtypes(tensors: Tensors) -> dict[str, int]:
    counts: dict[str, int] = {}
    for kind, _ in tensors.values():
        counts[kind] = counts.get(kind, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _missing(tensors: Tensors, layers: int, tied: bool) -> list[str]:
    wanted = ["model.embed_tokens.weight", "model.norm.weight", *([] if tied else ["lm_head.weight"])]
    for layer in range(layers):
        wanted += [f"model.layers.{layer}.{part}.weight" for part in (*_LAYER_PARTS, *_MLP_PARTS)]
    lacking = [name for name in wanted if name not in tensors]
    problems = [f"{len(lacking)} tensors are missing, the first is {lacking[0]}"] if lacking else []
    strange = [name for name in wanted if name in tensors and tensors[name][0] not in _FLOATS]
    if strange:
        kind = tensors[strange[0]][0]
        problems.append(f"{strange[0]} is {kind}, and so are others: dunlin reads {', '.join(_FLOATS)}")
    return problems
