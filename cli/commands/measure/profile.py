"""`dunlin profile`: measure this machine's engine, fit what a step and a move take, and keep both."""

import argparse
import os
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from cli.commands.measure.profile_show import (
    DEFAULT_SHAPE,
    compute_bound_text,
    compute_bound_tokens_of,
    show,
    typical_steps,
)
from cli.common.errors import FAILED, OK, USAGE, CliError
from cli.common.options import Subparsers, add_json, whole_number
from cli.common.output import as_json, table
from dunlin.cost import PROFILES_FILE
from dunlin.model.kv_dtypes import KV_DTYPES, precision_of
from dunlin.runtime.extras import missing_package_text

if TYPE_CHECKING:
    from cli.profiling.profiler import MeasuredProfile
    from dunlin.cost.engine_timing import EngineTiming
    from dunlin.cost.interrupts import InterruptTimes
    from dunlin.cost.store import ProfileKey

_DESCRIPTION = """\
Start one engine here, measure steps of all kinds (prefill after prefixes, decode by rows and context, both mixed) and
moves to the host tier and back, fit them, print how far the fit is from points it did not see, and keep the profile.
Run it while nothing else does.

examples:
  dunlin profile
  dunlin profile --model /models/llama --dtype bf16 --threads 8
  dunlin profile --model /models/llama --threads 8 --tp 2
  dunlin profile --cpu 1 --out machine.db     the engine and its caller on one core
  dunlin profile --cpu 1 --host               also what dunlin's own processes take there, and on another core
  dunlin profile --show a100 --model-shape llama-3-70b --tp 4
"""
_DTYPES = {"fp32": "float32", "bf16": "bfloat16"}


def add(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand."""
    parser = subparsers.add_parser(
        "profile",
        help="measure what steps cost on this machine",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model", default="builtin:tiny", help="builtin:tiny (default), builtin:chat, or a checkpoint's directory"
    )
    parser.add_argument(
        "--dtype", choices=list(_DTYPES), default="fp32", help="precision of weights and KV (default: fp32)"
    )
    parser.add_argument("--kv-dtype", choices=list(KV_DTYPES), default="auto", help="numbers of KV (default: auto)")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu (default), or cuda:N: an NVIDIA GPU")
    parser.add_argument(
        "--threads", type=whole_number(1), default=1, metavar="N", help="compute threads of the engine (default: 1)"
    )
    parser.add_argument(
        "--tp",
        type=whole_number(1, 64),
        default=1,
        metavar="N",
        help="processes that compute each layer together, as for `dunlin up`; of --show: GPUs (default: 1)",
    )
    parser.add_argument(
        "--kv-mib", type=whole_number(1), default=256, metavar="N", help="memory for KV in MiB (default: 256)"
    )
    parser.add_argument("--deterministic", action="store_true", help="as `dunlin up --deterministic` computes")
    parser.add_argument("--data-dir", type=Path, metavar="DIR", help="as for `dunlin up`; the profile is kept there")
    text = f"the store (default: {PROFILES_FILE} in the data directory)"
    parser.add_argument("--out", type=Path, metavar="DB", help=text)
    parser.add_argument(
        "--repeats",
        type=whole_number(3, 200),
        default=5,
        metavar="N",
        help="how often a step is measured in a row (default: 5)",
    )
    parser.add_argument(
        "--passes",
        type=whole_number(1, 100),
        default=4,
        metavar="N",
        help="how often all steps are measured (default: 4)",
    )
    parser.add_argument(
        "--cpu", type=whole_number(0), metavar="N", help="run the engine and its caller on this core alone"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer sizes: a first look in half a minute, kept as a coarse profile",
    )
    parser.add_argument("--points", action="store_true", help="also print every point beside its prediction")
    _add_show(parser.add_argument_group("what is known already"))
    parser.add_argument(
        "--host",
        action="store_true",
        help="then start a cluster and measure what its processes take (a minute)",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def _add_show(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--show", metavar="D", help="measure nothing: print what is known of a device, a profile or strategies"
    )
    group.add_argument(
        "--model-shape", metavar="M", help=f"of --show (default: {DEFAULT_SHAPE}; of a profile, the latest there)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, keep; or only print."""
    if arguments.show:
        return show(arguments)
    if arguments.host and arguments.cpu is None:
        raise CliError("--host measures what shares a core with the engine: say which with --cpu", USAGE)
    if arguments.cpu is not None and arguments.tp > 1:
        raise CliError(f"--cpu {arguments.cpu} is one core, and --tp {arguments.tp} needs several: drop one", USAGE)
    try:
        from dunlin.cost.store import ProfileStore, StoreError

        usable = os.sched_getaffinity(0)
        found = _measure(arguments)
        if arguments.host:
            found = replace(found, timing=_with_host(arguments, found.timing, usable))
    except ImportError as error:
        raise CliError(missing_package_text(error.name), USAGE) from error
    key = _key(arguments)
    path = arguments.out or _data_dir(arguments) / PROFILES_FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with ProfileStore(path) as store:
            store.save(key, datetime.now(UTC).isoformat(timespec="seconds"), found.timing, found.steps, found.moves)
    except (StoreError, OSError) as error:
        raise CliError(str(error), USAGE) from error
    if arguments.json:
        print(
            as_json(
                {
                    "key": key,
                    "store": str(path),
                    "errors": found.errors,
                    "steps": found.steps,
                    "compute_bound_tokens": compute_bound_tokens_of(found.timing.step),
                    "quality": found.timing.quality,
                }
            )
        )
    else:
        print(render(found, key, path, arguments.points))
    return OK


def _measure(arguments: argparse.Namespace) -> "MeasuredProfile":
    from cli.profiling.engine_probe import EngineProbe
    from cli.profiling.engine_process import ProbeError, ProbeOptions
    from cli.profiling.profiler import measure_profile
    from cli.profiling.trial_plan import trial_sizes
    from dunlin.engine.device.names import DeviceNameError, check_device_name
    from dunlin.model.builtin import models_folder, resolve_model
    from dunlin.model.errors import ModelError

    if arguments.cpu is not None:
        _pin(arguments.cpu)
    try:
        model = resolve_model(arguments.model, models_folder(_data_dir(arguments)))
        choice = ProbeOptions(
            model,
            arguments.kv_mib << 20,
            _DTYPES[arguments.dtype],
            KV_DTYPES[arguments.kv_dtype],
            arguments.threads,
            arguments.deterministic,
            check_device_name(arguments.device),
            arguments.tp,
        )
        with EngineProbe(choice) as probe:
            sizes = trial_sizes(probe.is_on_cpu, arguments.quick)
            return measure_profile(probe, sizes, arguments.repeats, arguments.passes, _progress)
    except (ModelError, DeviceNameError) as error:
        raise CliError(str(error), USAGE) from error
    except ProbeError as error:
        raise CliError(str(error), FAILED) from error


def _with_host(arguments: argparse.Namespace, timing: "EngineTiming", usable: set[int]) -> "EngineTiming":
    """The timing, with what the processes of a cluster take: the instance's on the engine's core, the others' on
    another.
    """
    from cli.launch.cluster_process import ClusterError, ClusterProcess
    from cli.profiling.process_cost_probe import measure_process_costs, pin_and_settle

    others = min(usable - {arguments.cpu}, default=arguments.cpu)
    os.sched_setaffinity(0, {others})
    flags = ["--model", arguments.model, "--dtype", arguments.dtype, "--kv-dtype", arguments.kv_dtype]
    flags += ["--device", arguments.device, "--threads", str(arguments.threads)]
    try:
        with ClusterProcess("--instances", "1", *flags) as cluster:
            pin_and_settle(cluster, arguments.cpu, others)
            return replace(timing, host=measure_process_costs(cluster, timing, shares_core=True, client_cpu=others))
    except (ClusterError, ValueError) as error:
        raise CliError(str(error), FAILED) from error


def _pin(cpu: int) -> None:
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError as error:
        known = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
        raise CliError(f"--cpu {cpu}: {error.strerror}; usable here: {known}", USAGE) from error


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\rmeasured {done} of {total} steps", end=end, file=sys.stderr, flush=True)


def _data_dir(arguments: argparse.Namespace) -> Path:
    from cli.launch.cluster_state import default_data_dir

    return Path(arguments.data_dir or default_data_dir()).absolute()


def _key(arguments: argparse.Namespace) -> "ProfileKey":
    from dunlin.cost.store import engine_key
    from dunlin.engine.device.names import computed_by, counted_threads

    return engine_key(
        arguments.model,
        computed_by(arguments.device),
        counted_threads(arguments.device, arguments.threads),
        precision_of(arguments.dtype, arguments.kv_dtype),
        deterministic=arguments.deterministic,
        ranks=arguments.tp,
    )


def render(found: "MeasuredProfile", key: "ProfileKey", path: Path, points: bool = False) -> str:
    """What a person reads: the profile, its errors on points it did not see, typical steps; and if it is coarse."""
    from dunlin.cost.profile_quality import quality_note

    timing = found.timing
    lines = [
        f"{key}: {len(found.steps)} steps and {len(found.moves)} moves",
        f"engine ready after {timing.load_s:.1f} s; {timing.slots:,} slots of {timing.kv_bytes_per_token:,} bytes",
        compute_bound_text(timing.step),
        "",
        "error on points left out of the fit",
        table(
            ("what", "regime", "points", "mean", "median", "p90"),
            [
                (e.part, e.regime, str(e.points), f"{e.mean:.1%}", f"{e.median:.1%}", f"{e.p90:.1%}")
                for e in found.errors
            ],
        ),
        "",
        "a step takes (from one's end to the next one's, the next one queued)",
        table(("step", "ms"), [(name, f"{timing.step_s(batch) * 1e3:.2f}") for name, batch in typical_steps()]),
        _interrupts_line(timing.interrupts),
    ]
    if points:
        lines += ["", _points(found)]
    note = quality_note(str(path), timing.quality)
    if note:
        lines += ["", note]
    return "\n".join([*lines, "", f"kept in {path}"])


def _interrupts_line(times: "InterruptTimes") -> str:
    """What is known of interrupts."""
    by_tokens = f"and {times.answer_token_s * 1e6:.2f} ms for 1,000 tokens that leave"
    answer = f"an interrupt is answered {times.answer_s * 1e3:.2f} ms {by_tokens} after a safepoint"
    if not times.measured:
        return f"{answer}; how layers are cut was not measured"
    cuts = [f"{each.layer_s * 1e3:.2g} ms: {len(each.starts)}" for each in times.measured]
    return f"{answer}; pieces of a layer that takes {', '.join(cuts)}"


def _points(found: "MeasuredProfile") -> str:
    rows = []
    for point in found.steps:
        counts = asdict(point.batch)
        predicted = found.timing.step_s(point.batch)
        times = (point.seconds, point.gap_s, predicted)
        rows.append((point.regime, *map(str, counts.values()), *(f"{1e3 * time:.3f}" for time in times)))
    return table(("regime", *(name.replace("_", " ") for name in counts), "compute ms", "gap ms", "predicted ms"), rows)
