"""Starts an instance: `python -m services.instance --help`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dunlin.arguments import Parser
from dunlin.cost.load import fitted_step
from dunlin.cost.models import StepModel
from dunlin.cost.store import StoreError
from dunlin.engine.builtin import models_folder, resolve_model
from dunlin.engine.config import load_config
from dunlin.engine.errors import ModelError
from dunlin.engine.options import ENGINE_MODULE
from dunlin.policies.presets import DEFAULT_PRESET, PRESETS
from dunlin.wire.options import add_service_flags, service_options
from dunlin.wire.process import run_service
from services.instance.config import InstanceConfig
from services.instance.server import serve
from services.instance.server_engine import EngineSettings

DTYPES = {"fp32": ("float32", 4), "bf16": ("bfloat16", 2)}
DEFAULT_KV_MIB = 256


def parser() -> argparse.ArgumentParser:
    """The command line."""
    usual = InstanceConfig()
    flags = Parser(prog="dunlin serve instance", description="One engine, its slots and its batch.")
    add_service_flags(flags)
    flags.add_argument("--model", default="builtin:tiny", help="builtin:tiny, or a Hugging Face checkpoint's directory")
    flags.add_argument("--dtype", default="fp32", choices=list(DTYPES), help="of weights and KV")
    flags.add_argument("--preset", default=DEFAULT_PRESET, choices=list(PRESETS), help="which policies decide")
    flags.add_argument("--deterministic", action="store_true", help="bit-equal tokens in any batch; fp32 only, slower")
    flags.add_argument(
        "--no-standby",
        action="store_true",
        help="load no second engine process in advance, to take over from the first",
    )
    flags.add_argument(
        "--engine-grace-s",
        default=usual.engine_grace_s,
        type=float,
        help="how long a lost engine's work waits for the next",
    )
    flags.add_argument("--engine-module", default=ENGINE_MODULE, help=argparse.SUPPRESS)
    flags.add_argument("--threads", default=1, type=int, help="compute threads of the engine")
    flags.add_argument(
        "--profile",
        type=Path,
        metavar="DB",
        help="what steps cost, as `dunlin profile` keeps it (default: profiles.db in the data directory, if there)",
    )
    room = flags.add_mutually_exclusive_group()
    room.add_argument("--kv-mib", default=DEFAULT_KV_MIB, type=int, help="memory for KV (default: %(default)s)")
    room.add_argument("--slots", default=0, type=int, help="token slots instead of --kv-mib")
    flags.add_argument(
        "--budget-tokens", default=usual.budget_tokens, type=int, help="tokens a step may hold (default: %(default)s)"
    )
    flags.add_argument("--no-prefix-reuse", action="store_true", help="compute every prompt from its first token")
    flags.add_argument(
        "--max-running", default=usual.max_running, type=int, help="sequences with slots (default: %(default)s)"
    )
    flags.add_argument(
        "--max-waiting", default=usual.max_waiting, type=int, help="sequences waiting here (default: %(default)s)"
    )
    flags.add_argument(
        "--checkpoint-share",
        default=usual.checkpoint_share,
        type=float,
        help="of the engine's time, for copies of what runs into the host tier; 0: none (default: %(default)s)",
    )
    flags.add_argument(
        "--orphan-grace-s", default=usual.orphan_grace_s, type=float, help="how long a lost dispatcher's requests go on"
    )
    return flags


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; returns the exit code."""
    flags = parser()
    arguments = flags.parse_args(argv)
    options = service_options("instance", arguments)
    try:
        settings = engine_settings(arguments, flags)
        config = InstanceConfig(
            node=options.node,
            model=arguments.model,
            preset=arguments.preset,
            max_slots=arguments.slots,
            max_running=arguments.max_running,
            max_waiting=arguments.max_waiting,
            budget_tokens=arguments.budget_tokens,
            orphan_grace_s=arguments.orphan_grace_s,
            checkpoint_share=arguments.checkpoint_share,
            prefix_reuse=not arguments.no_prefix_reuse,
            engine_grace_s=arguments.engine_grace_s,
            step_model=step_model(arguments),
        )
    except ValueError as error:
        flags.error(str(error))
    except ModelError as error:
        print(f"dunlin {options.role}/{options.name}: {error}", file=sys.stderr)
        return 2
    return run_service(options, lambda: serve(options, config, settings))


def step_model(arguments: argparse.Namespace) -> StepModel | None:
    """What was measured of this model on this machine; None if nothing was.

    Raises:
        ValueError: a store was named and does not hold it.
    """
    store = arguments.profile or arguments.data_dir / "profiles.db"
    if arguments.profile is None and not store.is_file():
        return None
    try:
        return fitted_step(store, arguments.model)
    except StoreError as error:
        if arguments.profile is not None:
            raise
        print(f"dunlin instance: {error}; going on without", file=sys.stderr)
        return None


def engine_settings(arguments: argparse.Namespace, flags: argparse.ArgumentParser) -> EngineSettings:
    """What the engine is told.

    Raises:
        ModelError: there is no such model, or not one that can be served.
    """
    if arguments.threads < 1 or arguments.slots < 0 or arguments.kv_mib < 1:
        flags.error("--threads and --kv-mib need at least 1, --slots at least 0")
    if arguments.deterministic and arguments.dtype != "fp32":
        flags.error(f"--deterministic computes in fp32, not {arguments.dtype}: drop one of the two")
    dtype, item_bytes = DTYPES[arguments.dtype]
    model = resolve_model(arguments.model, models_folder(arguments.data_dir))
    kv_bytes = arguments.kv_mib << 20
    if arguments.slots:
        config = load_config(model)
        # A granule more per layer than the slots fill: the engine rounds down, the core caps at --slots.
        kv_bytes = config.layers * (arguments.slots * config.slot_bytes(item_bytes) + (1 << 16))
    return EngineSettings(
        model,
        kv_bytes,
        dtype,
        arguments.deterministic,
        arguments.threads,
        standby=not arguments.no_standby,
        module=arguments.engine_module,
    )


if __name__ == "__main__":
    sys.exit(main())
