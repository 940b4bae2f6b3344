"""`dunlin sim`: a workload on a cluster that is modelled, under one preset or several, side by side; and its failures.

It needs neither a server nor torch; pictures need the extra `sim`. What is simulated is the cores that serve.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.commands.simulate import against, campaign
from cli.commands.simulate.cases import engines, make_cases
from cli.common.errors import FAILED, OK, USAGE, CliError
from cli.common.options import Subparsers, add_json, number, whole_number
from dunlin.workload.traffic.help_texts import HELP, SLO_HELP

if TYPE_CHECKING:
    from dunlin.workload.loadgen.slo import Slos
    from dunlin.workload.traffic.trace import Arrival
    from simulator.study.report import PresetFigures, SimulationOutcome
    from simulator.study.sweep import Case, SizingResult

_DESCRIPTION = """\
Run a workload on a modelled cluster: the cores that serve, in virtual time, on the GPUs of your choice. Prints what
would come of it for each preset, side by side.

examples:
  dunlin sim --workload poisson:rate=6,duration=300 --instances 2 --device a100 --model-shape llama-3-8b
  dunlin sim --trace trace.csv.gz --preset vllm,chunked,llumnix --instances 4 --slo ttft=2,tpot=0.1 --plot pictures
  dunlin sim --trace trace.csv.gz --find-instances 64 --slo ttft=2,tpot=0.1 --attainment 0.95
  dunlin sim --workload poisson:rate=6,duration=60 --explain slowest
  dunlin sim --trace trace.csv.gz --preset distserve --engine 1:device=h200,role=prefill --engine 2:role=decode
  dunlin sim --campaign --seeds 1000               random faults; exit code 1 if an invariant breaks
  dunlin sim --campaign --seeds 1 --first-seed 7   one seed again, exactly

workloads:
"""


def add(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand."""
    parser = subparsers.add_parser(
        "sim",
        help="simulate clusters under a workload, and their failures",
        description=_DESCRIPTION + HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_workload(parser.add_argument_group("workload"))
    _add_cluster(parser.add_argument_group("cluster"))
    _add_output(parser.add_argument_group("output"))
    campaign.add_options(parser)
    against.add_options(parser)
    parser.set_defaults(run=run)


def _add_workload(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--trace", metavar="FILE", help="a trace")
    group.add_argument("--workload", metavar="SPEC", help="a trace or an arrival process, as said above")
    group.add_argument("--duration", type=number(0, above=True), metavar="S", help="only its first S seconds")
    group.add_argument(
        "--seed", type=whole_number(0), default=0, metavar="N", help="seed of what is drawn at random (default: 0)"
    )
    group.add_argument(
        "--oracle", action="store_true",
        help="send each answer's length as its max_tokens (default: the same bound for all; answers end by themselves)",
    )  # fmt: skip
    group.add_argument(
        "--sampled", action="store_true",
        help="draw tokens with a temperature, which takes longer by a profile of this machine (default: greedy)",
    )  # fmt: skip
    group.add_argument(
        "--slo", action="append", default=[], metavar="LIMITS",
        help=f"{SLO_HELP}; instances aim at it (the strictest of interactive classes), unless --set says otherwise",
    )  # fmt: skip


def _add_cluster(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--preset", metavar="A,B,…", help="policies to compare, or `all` (default: unified)")
    group.add_argument(
        "--instances", type=whole_number(1, 8192), default=1, metavar="N", help="instances of each cluster (default: 1)"
    )
    group.add_argument(
        "--engine", action="append", default=[], metavar="COUNT[:device=D,tp=N,role=prefill|decode]",
        help="so many instances of another device, tensor parallelism or role, instead of --instances; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--find-instances",
        type=whole_number(1, 8192),
        metavar="MAX",
        help="find the fewest, up to MAX, that meet the SLO",
    )
    group.add_argument(
        "--attainment", type=number(0, above=True), default=0.99, metavar="SHARE",
        help="share of the requests that must meet it (default: 0.99)",
    )  # fmt: skip
    group.add_argument(
        "--device", default="a100", metavar="D", help="a100, a100-40g, a800, h100, h200 or a profile (default: a100)"
    )
    group.add_argument(
        "--model-shape", default="llama-3-8b", metavar="M", help="a name or a config.json (default: llama-3-8b)"
    )
    group.add_argument(
        "--tp", type=whole_number(1, 64), default=1, metavar="N", help="GPUs of an instance (default: 1)"
    )
    group.add_argument(
        "--overhead", default="", metavar="MS[,MS]|NAME",
        help="what the engine's host adds to each step, and besides to one with prompt tokens, for all presets; or an "
        "engine's: dunlin, vllm (by --tp), vllm-a800-tp8, a800-lwm-7b (default: by the preset's; 0: kernels alone)",
    )  # fmt: skip
    group.add_argument(
        "--link", action="append", default=[], metavar="NAME=GB/s",
        help="bandwidth of each direction of a GPU's pcie, nvlink or nic, or of a node's memory or node-nic (default: "
        "the device's); may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--learn-step-times", action="store_false", dest="has_profiles",
        help="instances learn the times of their steps, instead of knowing them from the first one on",
    )  # fmt: skip
    group.add_argument(
        "--nodes", type=whole_number(1, 8192), metavar="N", help="machines (default: one for each 8 GPUs)"
    )
    group.add_argument(
        "--dispatchers", type=whole_number(1, 64), default=1, metavar="N", help="dispatchers (default: 1)"
    )
    group.add_argument(
        "--host-gb", type=number(0), default=32.0, metavar="GB", help="host memory for KV per machine (default: 32)"
    )
    group.add_argument(
        "--max-positions",
        type=whole_number(2),
        metavar="N",
        help="clip longer requests (default: an instance's memory)",
    )
    group.add_argument(
        "--set", action="append", default=[], metavar="[PRESET:]NAME=VALUE",
        help="a setting by its name, as instance.scheduler.budget_tokens=1024, for all presets or one; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--config", action="append", default=[], type=Path, metavar="FILE", help="settings, as TOML; may be repeated"
    )


def _add_output(group: argparse._ArgumentGroup) -> None:
    add_json(group)  # type: ignore[arg-type]
    group.add_argument("--plot", type=Path, metavar="DIR", help="draw pictures into DIR (needs the extra `sim`)")
    group.add_argument(
        "--explain", metavar="REQUEST", help="tell the story of a request (req-…), or of the `slowest`, instead"
    )


def run(arguments: argparse.Namespace) -> int:
    """Simulate; exit code 1 if no cluster was large enough, or an invariant broke."""
    if arguments.campaign:
        return campaign.run_campaign(arguments)
    if arguments.against:
        return against.run_against(arguments)
    _load()
    slos, arrivals = _workload(arguments)
    cases = make_cases(arguments, slos)
    if arguments.find_instances:
        return _search(arguments, cases, arrivals, slos)
    outcomes = _run_all(arguments, cases, arrivals)
    if arguments.explain:
        return _print_explanations(arguments, outcomes)
    _finish(arguments, arrivals, outcomes, slos, {})
    return OK


def _load() -> None:
    try:
        importlib.import_module("simulator.study.run_case")
    except ModuleNotFoundError as error:
        raise CliError(f"this installation lacks {error.name}: pip install 'dunlin[sim]'", USAGE) from None


def _workload(arguments: argparse.Namespace) -> "tuple[Slos, list[Arrival]]":
    from dunlin.workload.loadgen.slo import parse_slos
    from dunlin.workload.traffic.workload_spec import read_workload

    if (arguments.trace is None) == (arguments.workload is None):
        raise CliError("say either --trace FILE or --workload SPEC", USAGE)
    text = f"trace:{arguments.trace}" if arguments.trace is not None else arguments.workload
    try:
        return parse_slos(arguments.slo), read_workload(text, arguments.seed, arguments.duration)
    except ValueError as error:
        raise CliError(str(error), USAGE) from None


def _run_all(
    arguments: argparse.Namespace, cases: "list[Case]", arrivals: "list[Arrival]"
) -> "list[SimulationOutcome]":
    from simulator.study.progress import StudyProgress
    from simulator.study.run_case import SimError, run_case
    from simulator.study.sweep import run_all

    progress = StudyProgress(sys.stderr, len(cases), time.monotonic)
    try:
        return run_all(cases, arrivals, run_case, arguments.jobs, lambda case, share: progress.show(case.preset, share))
    except SimError as error:
        raise CliError(str(error), USAGE) from None
    finally:
        progress.close()


# --- what is printed -------------------------------------------------------------------------------------------------


def _finish(
    arguments: argparse.Namespace,
    arrivals: "Sequence[Arrival]",
    outcomes: "Sequence[SimulationOutcome]",
    slos: "Slos",
    more: dict[str, Any],
) -> None:
    from cli.commands.simulate.table import render
    from cli.common.output import as_json
    from simulator.study.report import figures

    found = [figures(outcome, slos) for outcome in outcomes]
    said = _note(arguments)
    if arguments.plot:
        _draw(arguments.plot, arrivals, outcomes, slos)
    if arguments.json:
        print(as_json({"cluster": _cluster(arguments), "presets": found, **more, **({"note": said} if said else {})}))
        return
    print(f"{_head(arguments, arrivals, found)}\n")
    print(render(found))
    if said:
        print(f"\n{said}")
    slowest = [request for one in found for request in one.slowest[:1]]
    if slowest:
        print(
            "\nslowest to a first token: " + ", ".join(f"{one.preset} {one.slowest[0]}" for one in found if one.slowest)
        )


def _note(arguments: argparse.Namespace) -> str:
    """What is to be said of the device, if it is a profile."""
    from cli.commands.measure.profile_show import coarse_profile_note
    from dunlin.cost.timing_loader import load_timing

    return coarse_profile_note(arguments.device, load_timing(arguments.device, arguments.model_shape, arguments.tp))


def _cluster(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("instances", "device", "model_shape", "tp", "nodes", "dispatchers", "host_gb", "seed", "trace", "workload")
    return {**{name: getattr(arguments, name) for name in names}, "engines": [str(each) for each in engines(arguments)]}


def _head(arguments: argparse.Namespace, arrivals: "Sequence[Arrival]", found: "Sequence[PresetFigures]") -> str:
    span_s = max(arrivals[-1].at_s, 1e-9)
    sizes = sorted({one.instances for one in found})
    count = "/".join(map(str, sizes)) + (" instance" if sizes == [1] else " instances")
    gpus = f" of {arguments.tp} {arguments.device}" if arguments.tp > 1 else f" on {arguments.device}"
    cluster = " and ".join(map(str, engines(arguments))) or f"{count}{gpus}"
    from dunlin.workload.traffic.published import synthetic_notes

    notes = "".join(f"{line}\n" for line in synthetic_notes(arguments.workload or ""))
    return (
        f"{notes}{len(arrivals)} requests in {span_s:.0f} s ({len(arrivals) / span_s:.2f}/s); "
        f"{cluster}, {arguments.model_shape}; simulated in {sum(one.wall_s for one in found):.1f} s"
    )


def _print_explanations(arguments: argparse.Namespace, outcomes: "Sequence[SimulationOutcome]") -> int:
    from cli.common.output import as_json

    if arguments.json:
        print(as_json({outcome.preset: list(outcome.story) for outcome in outcomes}))
    for outcome in () if arguments.json else outcomes:
        if len(outcomes) > 1:
            print(f"--- {outcome.preset}")
        print(
            "\n".join(outcome.story) or f"nothing is known of {arguments.explain}: the table and --json name requests"
        )
    return OK if all(outcome.story for outcome in outcomes) else FAILED


def _draw(path: Path, arrivals: "Sequence[Arrival]", outcomes: "Sequence[SimulationOutcome]", slos: "Slos") -> None:
    from simulator.study.plot_files import draw_study
    from simulator.study.plots import PlotsMissing

    try:
        written = draw_study(path, arrivals, outcomes, slos)
    except PlotsMissing as error:
        raise CliError(str(error), USAGE) from None
    except OSError as error:
        raise CliError(f"{path}: pictures cannot be written ({error.strerror})", USAGE) from None
    print("pictures: " + ", ".join(map(str, written)), file=sys.stderr)


# --- the search ------------------------------------------------------------------------------------------------------


def _search(arguments: argparse.Namespace, cases: "list[Case]", arrivals: "list[Arrival]", slos: "Slos") -> int:
    from simulator.study.sweep import attainment_of, smallest_cluster

    def run_one(case: "Case") -> "SimulationOutcome":
        return _run_all(arguments, [case], arrivals)[0]

    share_of = attainment_of(slos)
    found = {
        case.preset: smallest_cluster(case, arguments.find_instances, arguments.attainment, share_of, run_one)
        for case in cases
    }
    if not arguments.json:
        print("\n".join(_verdict(arguments, preset, one) for preset, one in found.items()) + "\n")
    outcomes = [one.outcome for one in found.values() if one.outcome is not None]
    _finish(arguments, arrivals, outcomes, slos, {"tried": {preset: one.tried for preset, one in found.items()}})
    return OK if len(outcomes) == len(cases) else FAILED


def _verdict(arguments: argparse.Namespace, preset: str, found: "SizingResult") -> str:
    tried = ", ".join(f"{size}: {share:.1%}" for size, share in found.tried)
    if found.outcome is None:
        return f"{preset}: not even {arguments.find_instances} instances meet it (SLO met with {tried})"
    size = len(found.outcome.tracks)
    gpus = f" ({size * arguments.tp} GPUs)" if arguments.tp > 1 else ""
    return f"{preset}: {size} instance{'s' if size > 1 else ''}{gpus} (SLO met with {tried})"
