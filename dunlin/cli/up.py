"""`dunlin up`: a whole cluster on this machine, in the foreground."""

import argparse
from pathlib import Path

from dunlin.cli.errors import USAGE, CliError
from dunlin.cli.options import Subparsers, number, port, whole
from dunlin.origins import origin

_DESCRIPTION = """\
Start a cluster on this machine: etcd, dispatcher, global manager, monitor, kvstore and the instances, each a process
of its own. Once it can serve it prints one line, `ready model=… http=… grpc=… metrics=…` (with --tls also `ca=…`),
and how to use it on standard error. Ctrl-C (or SIGTERM) stops it all.

examples:
  dunlin up                                      two instances of the small built-in model
  dunlin up --instances 3 --deterministic        the same text whatever the batch, also after a crash
  dunlin up --model ./checkpoint --dtype bf16    a Hugging Face checkpoint
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
    parser.add_argument(
        "--model",
        default="builtin:tiny",
        metavar="NAME|DIR",
        help="builtin:tiny (default), or a checkpoint's directory",
    )
    parser.add_argument(
        "--model-name",
        default="",
        metavar="NAME",
        help="what clients call it, as `model` in their requests (default: builtin:tiny, or the directory's name)",
    )
    parser.add_argument(
        "--dtype", choices=("fp32", "bf16"), default="fp32", help="precision of weights and KV (default: fp32)"
    )
    parser.add_argument("--preset", default="chunked", metavar="NAME", help="the choice of policies (default: chunked)")
    parser.add_argument(
        "--prefill-share",
        type=float,
        metavar="X",
        help="with --preset distserve: share of the instances that compute prompts (default: 0.5)",
    )
    parser.add_argument(
        "--deterministic", action="store_true", help="the same text whatever else runs (fp32 only, slower)"
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
        default=[],
        type=origin,
        metavar="ORIGIN",
        help="web pages that may ask over HTTP, such as https://chat.example.com; * for all (may be repeated)",
    )
    parser.add_argument(
        "--otlp", default="", metavar="URL", help="send traces to this OpenTelemetry collector, http(s)://HOST:4317"
    )
    parser.add_argument(
        "--access-log",
        action="store_true",
        help="each dispatcher writes a JSON line for each call to DATA_DIR/logs/dispatcher-N.access.jsonl",
    )


def _add_sizes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--instances", type=whole(1, 64), default=2, metavar="N", help="how many instances (default: 2)"
    )
    parser.add_argument("--dispatchers", type=whole(1, 16), default=1, metavar="N", help="dispatchers (default: 1)")
    parser.add_argument(
        "--managers", type=whole(1, 16), default=1, metavar="N", help="global managers, one of which leads (default: 1)"
    )
    parser.add_argument(
        "--nodes", type=whole(1, 16), default=1, metavar="N", help="play so many machines on this one (default: 1)"
    )


def _add_resources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--slots", type=whole(16), metavar="N", help="token slots of each instance (default: what 256 MiB hold)"
    )
    parser.add_argument(
        "--tier-mib", type=whole(1), metavar="MIB", help="host memory for KV of each node (default: 256)"
    )
    parser.add_argument(
        "--replicate", action="store_true", help="keep a second copy of checkpoints at another node (with --nodes)"
    )
    parser.add_argument(
        "--transport",
        choices=("auto", "sockets", "nixl"),
        default="auto",
        help="how KV goes between nodes (default: auto, which is nixl where it is installed and pays)",
    )
    parser.add_argument(
        "--checkpoint-share",
        type=number(0),
        metavar="F",
        help="of the engine's time, for copies of what runs into the host tier; 0: none (default: 0.025)",
    )
    parser.add_argument(
        "--max-wait-s",
        type=number(0),
        metavar="S",
        help="refuse at once what would wait longer for its turn (default: 30)",
    )
    parser.add_argument("--no-prefix-reuse", action="store_true", help="compute every prompt from its first token")
    parser.add_argument(
        "--threads",
        type=whole(0),
        default=0,
        metavar="N",
        help="compute threads of each instance (default: all cores but one, shared among the instances)",
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
    from dunlin.launch.errors import LaunchError
    from dunlin.launch.options import UpOptions
    from dunlin.launch.state import default_data_dir
    from dunlin.launch.up import run_up

    options = UpOptions(
        data_dir=(arguments.data_dir or default_data_dir()).absolute(),
        instances=arguments.instances,
        dispatchers=arguments.dispatchers,
        managers=arguments.managers,
        nodes=arguments.nodes,
        model=arguments.model,
        model_name=arguments.model_name,
        dtype=arguments.dtype,
        preset=arguments.preset,
        prefill_share=arguments.prefill_share,
        deterministic=arguments.deterministic,
        host=arguments.host.strip("[]"),
        http_port=arguments.http_port,
        grpc_port=arguments.grpc_port,
        etcd=arguments.etcd,
        etcd_user=arguments.etcd_user,
        otlp=arguments.otlp,
        etcd_password_file=arguments.etcd_password_file and arguments.etcd_password_file.absolute(),
        tls=arguments.tls,
        keys=arguments.keys,
        access_log=arguments.access_log,
        cors=tuple(arguments.cors),
        slots=arguments.slots,
        tier_mib=arguments.tier_mib,
        checkpoint_share=arguments.checkpoint_share,
        max_wait_s=arguments.max_wait_s,
        replicate=arguments.replicate,
        transport=arguments.transport,
        prefix_reuse=not arguments.no_prefix_reuse,
        threads=arguments.threads,
        ready_timeout_s=arguments.ready_timeout,
    )
    try:
        return run_up(options)
    except LaunchError as error:
        raise CliError(f"cannot start the cluster: {error}", USAGE) from None
