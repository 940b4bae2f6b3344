"""`dunlin up`: a whole cluster on this machine, in the foreground."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from cli.common.errors import USAGE, CliError
from cli.common.options import Subparsers, add_settings, number, port, whole_number
from dunlin.auth.web_origins import origin_argument
from dunlin.model.kv_dtypes import KV_DTYPES

if TYPE_CHECKING:
    from dunlin.config.resolve import Settings
    from dunlin.config.sources import Given

_DESCRIPTION = """\
Start a cluster on this machine: etcd, dispatcher, global manager, monitor, kvstore and the instances, each a process
of its own. Once it can serve it prints one line, `ready model=… http=… grpc=… metrics=…` (with --tls also `ca=…`),
and how to use it on standard error. Ctrl-C (or SIGTERM) stops it all.

examples:
  dunlin up                                      two instances of the small built-in model
  dunlin up --instances 3 --deterministic        the same text whatever the batch, also after a crash
  dunlin up --model ./checkpoint --dtype bf16    a Hugging Face checkpoint
  dunlin up --model ./checkpoint --lora terse=./a --lora kind=./b    adapters beside each other
  dunlin up --http-port 0 --grpc-port 0          any free ports: the ready line names them
"""


def add(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand."""
    parser = subparsers.add_parser(
        "up",
        help="start a cluster on this machine",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_sizes(parser)
    add_settings(parser)
    parser.add_argument(
        "--model",
        metavar="NAME|DIR",
        help="builtin:tiny (default), builtin:chat, or a checkpoint's directory",
    )
    parser.add_argument(
        "--model-name",
        metavar="NAME",
        help="what clients call it, as `model` in their requests (default: builtin:tiny, or the directory's name)",
    )
    parser.add_argument(
        "--lora",
        action="append",
        metavar="NAME=DIR",
        help="a LoRA adapter, as PEFT writes it, that clients call NAME as their `model` (may be repeated)",
    )
    parser.add_argument("--dtype", choices=("fp32", "bf16"), help="precision of weights and KV (default: fp32)")
    parser.add_argument("--kv-dtype", choices=tuple(KV_DTYPES), help="numbers of KV; fp8: half the memory of bf16")
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="what engines compute on: cpu (default), cuda (each instance a GPU of its own, in turn), or cuda:N",
    )
    parser.add_argument("--preset", metavar="NAME", help="the choice of policies (default: unified)")
    parser.add_argument(
        "--prefill-share",
        type=float,
        metavar="X",
        help="with --preset distserve: share of the instances that compute prompts (default: 0.5)",
    )
    parser.add_argument(
        "--deterministic", action="store_const", const=True, help="the same text whatever else runs (fp32 only, slower)"
    )
    parser.add_argument(
        "--http-port", type=port, default=8000, metavar="P", help="OpenAI-compatible door (default: 8000; 0: any)"
    )
    parser.add_argument("--grpc-port", type=port, default=7070, metavar="P", help="gRPC door (default: 7070; 0: any)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--etcd", default="", metavar="HOST:PORT[,…]", help="your etcd (default: an embedded one)")
    parser.add_argument("--etcd-user", default="", metavar="NAME", help="user of an etcd with authentication")
    parser.add_argument(
        "--etcd-password-file",
        type=Path,
        metavar="FILE",
        help="holds that user's password (default: $DUNLIN_ETCD_PASSWORD)",
    )
    _add_doors(parser)
    _add_resources(parser)
    parser.set_defaults(run=run)


def _add_doors(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tls",
        action="store_true",
        help="encrypt and authenticate every connection; the certificates are made under the data directory",
    )
    parser.add_argument("--keys", type=Path, metavar="FILE", help="API keys and quotas of tenants (see `dunlin keys`)")
    parser.add_argument(
        "--cors",
        action="append",
        type=origin_argument,
        metavar="ORIGIN",
        help="web pages that may ask over HTTP, such as https://chat.example.com; * for all (may be repeated)",
    )
    parser.add_argument(
        "--otlp", metavar="URL", help="send traces to this OpenTelemetry collector, http(s)://HOST:4317"
    )
    parser.add_argument(
        "--access-log",
        action="store_true",
        help="each dispatcher writes a JSON line for each call to DATA_DIR/logs/dispatcher-N.access.jsonl",
    )


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--instances", type=whole_number(1, 64), default=2, metavar="N", help="how many instances (default: 2)"
    )
    parser.add_argument(
        "--dispatchers", type=whole_number(1, 16), default=1, metavar="N", help="dispatchers (default: 1)"
    )
    parser.add_argument(
        "--managers",
        type=whole_number(1, 16),
        default=1,
        metavar="N",
        help="global managers, one of which leads (default: 1)",
    )
    parser.add_argument(
        "--nodes",
        type=whole_number(1, 16),
        default=1,
        metavar="N",
        help="play so many machines on this one (default: 1)",
    )


def _add_memory(parser: argparse.ArgumentParser) -> None:
    room = parser.add_mutually_exclusive_group()
    room.add_argument(
        "--slots",
        type=whole_number(16),
        metavar="N",
        help="token slots of each instance (default: what 256 MiB hold; on a GPU see --gpu-memory-utilization)",
    )
    room.add_argument(
        "--memory", metavar="SIZE", help="memory for weights and KV of each instance, such as 8GiB or 800MiB"
    )
    parser.add_argument(
        "--gpu-memory-utilization",
        type=number(0, above=True),
        metavar="F",
        help="share of a GPU's memory for the instances on it: weights, work space, and KV in the rest (default: 0.9)",
    )


def _add_resources(parser: argparse.ArgumentParser) -> None:
    _add_memory(parser)
    parser.add_argument(
        "--tier-mib", type=whole_number(1), metavar="MIB", help="host memory for KV of each node (default: 256)"
    )
    parser.add_argument(
        "--replicate",
        action="store_const",
        const=True,
        help="keep a second copy of checkpoints at another node (with --nodes)",
    )
    parser.add_argument(
        "--transport",
        choices=("auto", "sockets", "nixl"),
        help="how KV goes between nodes (default: auto, which is nixl where it is installed and pays)",
    )
    parser.add_argument(
        "--checkpoint-share",
        type=number(0),
        metavar="F",
        help="of wall time, for copies of what runs into the host tier; 0: none (default: 0.025)",
    )
    parser.add_argument(
        "--max-wait-s",
        type=number(0),
        metavar="S",
        help="refuse at once what would wait longer for its turn (default: 30)",
    )
    parser.add_argument(
        "--no-prefix-reuse", action="store_const", const=False, help="compute every prompt from its first token"
    )
    parser.add_argument(
        "--threads",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="compute threads of each instance (default: all cores but one, shared among the instances)",
    )
    parser.add_argument(
        "--tp",
        type=whole_number(1),
        metavar="N",
        help="processes of each instance that compute each layer together (default: 1)",
    )
    parser.add_argument(
        "--ready-timeout",
        type=number(1),
        default=180.0,
        metavar="S",
        help="seconds to wait for the cluster to be ready (default: 180)",
    )
    parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="state and logs (default: $DUNLIN_DATA_DIR, else ~/.local/state/dunlin)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the cluster until it is stopped."""
    from cli.launch.cluster_state import default_data_dir
    from cli.launch.errors import LaunchError
    from cli.launch.local_cluster import run_local_cluster
    from cli.launch.options import UpOptions
    from dunlin.config.sources import as_word

    settings, flags = _settings_of(arguments)
    options = UpOptions(
        data_dir=(arguments.data_dir or default_data_dir()).absolute(),
        settings=settings,
        config=tuple(path.absolute() for path in arguments.config),
        words=(*arguments.set, *map(as_word, flags)),
        instances=arguments.instances,
        dispatchers=arguments.dispatchers,
        managers=arguments.managers,
        nodes=arguments.nodes,
        host=arguments.host.strip("[]"),
        http_port=arguments.http_port,
        grpc_port=arguments.grpc_port,
        etcd=arguments.etcd,
        etcd_user=arguments.etcd_user,
        etcd_password_file=arguments.etcd_password_file and arguments.etcd_password_file.absolute(),
        tls=arguments.tls,
        access_log=arguments.access_log,
        ready_timeout_s=arguments.ready_timeout,
    )
    try:
        return run_local_cluster(options)
    except LaunchError as error:
        raise CliError(f"cannot start the cluster: {error}", USAGE) from None


_SHORT_FOR = {
    "model": "cluster.model",
    "model_name": "cluster.model_name",
    "lora": "cluster.lora",
    "preset": "cluster.preset",
    "dtype": "instance.engine.dtype",
    "kv_dtype": "instance.engine.kv_dtype",
    "device": "instance.engine.device",
    "deterministic": "instance.engine.deterministic",
    "threads": "instance.engine.threads",
    "tp": "instance.engine.ranks",
    "slots": "instance.kv_cache.max_slots",
    "memory": "instance.engine.memory_bytes",
    "gpu_memory_utilization": "instance.engine.gpu_memory_utilization",
    "no_prefix_reuse": "instance.kv_cache.prefix_caching",
    "checkpoint_share": "instance.checkpoint.engine_share",
    "max_wait_s": "dispatcher.admission.max_wait_s",
    "cors": "dispatcher.http.origins",
    "keys": "dispatcher.tenants.keys_file",
    "prefill_share": "manager.groups.prefill_share",
    "tier_mib": "kvstore.tier.capacity_bytes",
    "replicate": "kvstore.exchange.replicate",
    "transport": "kvstore.exchange.transport",
    "otlp": "monitor.tracing.otlp_url",
}
"""Flags that are short for settings. --threads 0 and a flag that was not used give nothing."""
_THREADS = "instance.engine.threads"


def _settings_of(arguments: argparse.Namespace) -> "tuple[Settings, list[Given]]":
    """What holds, and what of it this command gave. The cores are shared where nothing says how many threads,
    and a GPU's memory by the instances on it."""
    from cli.launch.memory import divided_share
    from cli.launch.options import shared_threads
    from dunlin.config.errors import ConfigError
    from dunlin.config.resolve import resolve
    from dunlin.config.sources import Given, from_all
    from dunlin.runtime.cuda_driver import gpu_names
    from services.settings import TABLES

    flags = _given(arguments)
    try:
        settings = resolve(TABLES, from_all(arguments.config, arguments.set, flags))
        if not settings.is_given(_THREADS):
            flags.append(Given(_THREADS, shared_threads(arguments.instances), "dunlin up: all cores but one, shared"))
            settings = resolve(TABLES, from_all(arguments.config, arguments.set, flags))
        divided = divided_share(settings, arguments.instances, len(gpu_names()))
        if divided is not None:
            flags.append(divided)
            settings = resolve(TABLES, from_all(arguments.config, arguments.set, flags))
        for role, table in TABLES.items():
            settings.configure(role, table)
    except ConfigError as error:
        raise CliError(str(error), USAGE) from None
    return settings, flags


def _given(arguments: argparse.Namespace) -> "list[Given]":
    from dunlin.config.sources import Given

    found = []
    for flag, name in _SHORT_FOR.items():
        value = getattr(arguments, flag)
        if value is None or (flag == "threads" and value == 0):
            continue
        value = value << 20 if flag == "tier_mib" else str(value.absolute()) if isinstance(value, Path) else value
        found.append(Given(name, value, f"--{flag.replace('_', '-')}"))
    return found
