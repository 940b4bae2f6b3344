"""`dunlin model`: `init DIR` makes a checkpoint with random weights, to try sizes with; `show` looks at one; `list`
says what dunlin runs.
"""

import argparse
from pathlib import Path

from cli.commands.setup import model_list, model_show
from cli.common.errors import USAGE, CliError
from cli.common.options import Subparsers, number, whole_number
from dunlin.model.families import FAMILIES
from dunlin.runtime.extras import missing_package_text

_INIT = """\
Write a Hugging Face checkpoint (config, safetensors, tokenizer, chat template) with random weights.

examples:
  dunlin model init ./small
  dunlin model init ./wide --family qwen2 --layers 8 --hidden 512 --heads 8 --kv-heads 4 --dtype bfloat16
  dunlin up --model ./small
"""
TOKENS = 4096
"""Of the built-in tokenizer: each needs an embedding."""
_DTYPES = ("float32", "bfloat16", "float16")


def add(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand and its own."""
    parser = subparsers.add_parser(
        "model", help="make a checkpoint, or look at one", description="Work with checkpoints."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    model_show.add(commands)
    model_list.add(commands)
    init = commands.add_parser(
        "init",
        help="write a random-weight checkpoint",
        description=_INIT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    init.add_argument("directory", type=Path, metavar="DIR", help="a directory that holds no checkpoint yet")
    init.add_argument("--family", choices=tuple(FAMILIES), default="llama", help="architecture (default: llama)")
    init.add_argument("--dtype", choices=_DTYPES, default="float32", help="of the weights (default: float32)")
    init.add_argument("--tied", action="store_true", help="one matrix for embedding and output")
    init.add_argument(
        "--seed", type=whole_number(0), default=0, metavar="N", help="the same seed gives the same bytes (default: 0)"
    )
    _add_sizes(init)
    init.set_defaults(run=run)


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    sizes = (
        ("--layers", 4, "decoder layers"),
        ("--hidden", 256, "width of the residual"),
        ("--heads", 8, "query heads"),
        ("--kv-heads", 4, "key-value heads"),
        ("--intermediate", 704, "width of the MLP"),
        ("--max-positions", 16384, "longest sequence in tokens"),
    )
    for flag, default, what in sizes:
        parser.add_argument(
            flag, type=whole_number(1), default=default, metavar="N", help=f"{what} (default: {default})"
        )
    parser.add_argument(
        "--vocab",
        type=whole_number(TOKENS),
        default=TOKENS,
        metavar="N",
        help=f"vocabulary; the tokenizer that is written has {TOKENS} tokens (default: {TOKENS})",
    )
    parser.add_argument(
        "--head-dim", type=whole_number(2), metavar="N", help="width of a head (default: hidden / heads)"
    )
    parser.add_argument(
        "--rope-theta",
        type=number(1),
        default=10_000.0,
        metavar="X",
        help="base of the rotary embedding (default: 10000)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write it."""
    try:
        from dunlin.engine.decoder.loading.random_checkpoint import CheckpointShape, write_random_checkpoint
        from dunlin.model.errors import ModelError
    except ModuleNotFoundError as error:
        raise CliError(missing_package_text(error.name), USAGE) from None
    shape = CheckpointShape(
        layers=arguments.layers,
        hidden=arguments.hidden,
        heads=arguments.heads,
        kv_heads=arguments.kv_heads,
        head_dim=arguments.head_dim or max(2, arguments.hidden // arguments.heads),
        intermediate=arguments.intermediate,
        vocab=arguments.vocab,
        max_positions=arguments.max_positions,
        tied=arguments.tied,
        dtype=arguments.dtype,
        rope_theta=arguments.rope_theta,
    )
    try:
        config = write_random_checkpoint(arguments.directory, arguments.family, shape, arguments.seed)
    except ModelError as error:
        raise CliError(str(error), USAGE) from None
    except OSError as error:
        raise CliError(f"{arguments.directory}: cannot be written ({error.strerror})", USAGE) from None
    size_mb = (arguments.directory / "model.safetensors").stat().st_size / 1e6
    print(f"{arguments.directory}: {config.family}, {config.layers} layers of {config.hidden}, {size_mb:.1f} MB")
    return 0
