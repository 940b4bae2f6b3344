"""Starts an instance: `python -m services.instance --help`."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from dunlin.config.adapters import split_adapters
from dunlin.config.common import ClusterConfig
from dunlin.config.errors import ConfigError
from dunlin.config.flags import Shorthands, add_config_flags, read_settings
from dunlin.config.resolve import Settings
from dunlin.cost import PROFILES_FILE
from dunlin.engine.device.names import CPU, device_of, lacking_gpus
from dunlin.engine.process.options import ENGINE_MODULE, ENGINE_MODULES, engine_environment
from dunlin.engine.remote.options import HelperOptions
from dunlin.model.builtin import models_folder, resolve_model
from dunlin.model.config import ModelConfig, load_config
from dunlin.model.errors import ModelError
from dunlin.model.kv_dtypes import KV_DTYPES
from dunlin.model.lora.adapter import load_adapter
from dunlin.model.rank_part import RankError, check_ranks
from dunlin.runtime.arguments import CommandParser
from dunlin.runtime.cuda_driver import gpu_names
from dunlin.runtime.fork_server.client import ForkServer
from dunlin.wire.service.options import ServiceOptions, add_service_flags, service_options
from dunlin.wire.service.process import run_service
from services.instance.memory import largest_step, told_kv_bytes
from services.instance.process_config import DTYPES, InstanceProcessConfig, PeerTransfersConfig
from services.instance.server import serve
from services.instance.server_engine_supervisor import EngineLaunchSettings
from services.instance.server_learnt_steps import saver
from services.instance.step_profile import find_step_times, step_times_key

TABLES = {"cluster": ClusterConfig, "instance": InstanceProcessConfig}


def parser() -> argparse.ArgumentParser:
    """The command line."""
    flags = CommandParser(prog="dunlin serve instance", description="One engine, its slots and its batch.")
    add_service_flags(flags)
    add_config_flags(flags)
    short = Shorthands(TABLES)
    _add_engine(flags, short)
    _add_scheduling(flags, short)
    return flags


def _add_engine(flags: argparse.ArgumentParser, short: Shorthands) -> None:
    short.add(flags, "--model", "cluster.model", "builtin:tiny, builtin:chat, or a Hugging Face checkpoint's directory")
    text = "a LoRA adapter that requests may name as their model (may be repeated)"
    short.add(flags, "--lora", "cluster.lora", text, several=True, metavar="NAME=DIR")
    short.add(flags, "--preset", "cluster.preset", "which policies decide")
    short.add(flags, "--dtype", "instance.engine.dtype", "of weights, and of KV unless --kv-dtype says otherwise")
    short.add(flags, "--kv-dtype", "instance.engine.kv_dtype", "of KV; fp8: half the memory of bf16")
    short.add(flags, "--device", "instance.engine.device", "what the engine computes on")
    text = "bit-equal tokens in any batch; fp32 only, slower"
    short.switch(flags, "--deterministic", "instance.engine.deterministic", text)
    short.add(flags, "--tp", "instance.engine.ranks", "processes that compute each layer together", metavar="N")
    text = "load no second engine process in advance, to take over from the first"
    short.switch(flags, "--no-standby", "instance.engine.standby", text)
    text = "how long a lost engine's work waits for the next"
    short.add(flags, "--engine-grace-s", "instance.recovery.engine_grace_s", text, metavar="S")
    flags.add_argument("--engine-module", default=ENGINE_MODULE, help=argparse.SUPPRESS)
    flags.add_argument("--fork-server-fd", type=int, default=-1, help=argparse.SUPPRESS)
    short.add(flags, "--threads", "instance.engine.threads", "compute threads of the engine", metavar="N")
    room = flags.add_mutually_exclusive_group()
    text = "memory for KV; by default 256 on the CPU"
    short.add(room, "--kv-mib", "instance.engine.kv_bytes", text, unit=1 << 20, metavar="MIB")
    short.add(room, "--slots", "instance.kv_cache.max_slots", "token slots instead of --kv-mib", metavar="N")
    short.add(room, "--memory", "instance.engine.memory_bytes", "for weights and KV, as 8GiB or 800MiB", metavar="SIZE")
    text = "share of the GPU's memory that the engine may use in all"
    short.add(flags, "--gpu-memory-utilization", "instance.engine.gpu_memory_utilization", text, metavar="F")


def _add_scheduling(flags: argparse.ArgumentParser, short: Shorthands) -> None:
    scheduler = "instance.scheduler"
    short.add(flags, "--budget-tokens", f"{scheduler}.budget_tokens", "tokens that a step is filled up to", metavar="N")
    text = "compute every prompt from its first token"
    short.switch(flags, "--no-prefix-reuse", "instance.kv_cache.prefix_caching", text)
    short.add(flags, "--max-running", f"{scheduler}.max_running", "sequences with slots", metavar="N")
    short.add(flags, "--max-waiting", f"{scheduler}.max_waiting", "sequences waiting here", metavar="N")
    text = "of wall time, for copies of what runs into the host tier; 0: none"
    short.add(flags, "--checkpoint-share", "instance.checkpoint.engine_share", text, metavar="X")
    text = "how long a lost dispatcher's requests go on"
    short.add(flags, "--orphan-grace-s", "instance.retention.orphan_grace_s", text, metavar="S")


def settings_of(arguments: argparse.Namespace) -> Settings:
    """What holds for this process. Raises ConfigError."""
    return read_settings(arguments, TABLES)


def main(argv: Sequence[str] | None = None) -> int:
    """Run until told to stop; returns the exit code."""
    flags = parser()
    arguments = flags.parse_args(argv)
    options = service_options("instance", arguments)
    try:
        settings = settings_of(arguments)
        model = settings["cluster.model"]
        config = settings.configure("instance", InstanceProcessConfig, node=options.node, model=model)
        adapters = split_adapters(settings["cluster.lora"])
        engine = engine_settings(config, options.data_dir, arguments.engine_module, adapters)
        device = own_device(config.engine.device, options.name, config.engine.ranks)
        is_reached = device == CPU and config.engine.ranks == 1  # by engines of other nodes
        helper = helper_options(config.peer_transfers, options) if is_reached else None
        engine = replace(engine, node=options.node, helper=helper, device=device)
        known = find_step_times(config, options.data_dir)
    except ConfigError as error:
        flags.error(str(error))
    except ModelError as error:
        print(f"dunlin {options.role}/{options.name}: {error}", file=sys.stderr)
        return 2
    save = saver(options.data_dir / PROFILES_FILE, step_times_key(config))
    # Here: the server loads torch while this process says in etcd that it is there.
    forks = ForkServer(ENGINE_MODULES, engine_environment(os.environ, device), arguments.fork_server_fd)
    return run_service(options, lambda: serve(options, config, engine, forks, known, save), settings.told())


def engine_settings(
    config: InstanceProcessConfig,
    data_dir: Path,
    module: str = ENGINE_MODULE,
    adapters: Mapping[str, str] | None = None,
) -> EngineLaunchSettings:
    """What the engine is told. `adapters`: directories of LoRA adapters by name.

    Raises:
        ModelError: there is no such model or adapter, or not one that can be served.
        ConfigError: several ranks cannot compute it, or its memory is too little.
    """
    model, engine = resolve_model(config.model, models_folder(data_dir)), config.engine
    shape = load_config(model)
    _check_ranks(shape, engine.ranks, adapters or {})
    kv_bytes = told_kv_bytes(config, shape)
    loaded = tuple(load_adapter(Path(each), shape) for each in (adapters or {}).values())
    named = tuple(dict.fromkeys(f"{one.digest}={one.directory}" for one in loaded))
    tokens, rows = largest_step(config.scheduler)
    return EngineLaunchSettings(
        model, kv_bytes, DTYPES[engine.dtype][0], KV_DTYPES[engine.kv_dtype], engine.deterministic, engine.threads,
        engine.standby, module, adapters=named, ranks=engine.ranks, gpu_share=engine.gpu_memory_utilization,
        step_tokens=tokens, step_rows=rows,
    )  # fmt: skip


def _check_ranks(model: ModelConfig, ranks: int, adapters: Mapping[str, str]) -> None:
    try:
        check_ranks(model, ranks)
    except RankError as error:
        raise ConfigError(f"instance.engine.ranks: {error}") from None
    if ranks > 1 and adapters:
        raise ConfigError(f"instance.engine.ranks: adapters are computed by one rank, not by {ranks}")


def own_device(device: str, name: str, ranks: int = 1) -> str:
    """The device of the instance of that name, whose number it ends with: of the first of its `ranks`.

    Raises:
        ConfigError: there are fewer GPUs than its ranks take.
    """
    number, gpus = name.rpartition("-")[2], len(gpu_names())
    own = device_of(device, int(number) if number.isdecimal() else 0, gpus, ranks)
    if fault := lacking_gpus(own, ranks, gpus):
        raise ConfigError(f"instance.engine.ranks: {fault}")
    return own


def helper_options(config: PeerTransfersConfig, options: ServiceOptions) -> HelperOptions | None:
    """What the transfer helper is told; None: there is none."""
    if config.between_nodes == "off":
        return None
    listen, advertise = (each.rpartition(":")[0] for each in (options.listen, options.endpoint(0)))
    return HelperOptions(
        name=options.name,
        parent_pid=os.getpid(),
        socket_fd=-1,
        listen=listen or "127.0.0.1",
        advertise=advertise,
        port=config.port,
        backend=config.between_nodes,
        tls_dir=options.tls_dir,
        stall_s=config.stall_timeout_s,
    )


if __name__ == "__main__":
    sys.exit(main())
