"""`dunlin replay WORKLOAD`: an open-loop load from a trace or an arrival process, and what became of it."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cli.common.cluster import client_keywords, find_endpoint, sdk_errors_as_cli
from cli.common.errors import FAILED, OK, USAGE, CliError
from cli.common.options import Subparsers, add_cluster_options, add_json, number, whole_number
from cli.common.output import as_json, table, to_json_value
from dunlin.runtime.extras import missing_package_text
from dunlin.workload.traffic.help_texts import HELP, SLO_HELP

if TYPE_CHECKING:
    from dunlin.workload.loadgen.http_client import HttpTarget
    from dunlin.workload.loadgen.load_generator import LoadGenerator
    from dunlin.workload.loadgen.run_record import RecordedRun
    from dunlin.workload.loadgen.stats import RequestRecord, RunReport
    from dunlin.workload.traffic.trace import Arrival

_DESCRIPTION = """\
Send the requests of a workload when it says, whatever became of those before (open loop), and print percentiles.

A workload is a trace (CSV of dunlin, Azure or BurstGPT, JSON lines of Mooncake; plain or .gz) or an arrival process.
Prompts are random tokens of the length it says, which share the beginnings that it says; lengths beyond the model's
room are clipped, and the share of those is printed.

examples:
  dunlin replay trace.csv.gz --duration 120
  dunlin replay trace.csv.gz --speed 0.5 --save run.json
  dunlin replay poisson:rate=4,duration=60,lengths=fixed(64,32) --slo ttft=1,tpot=0.2 --record run.jsonl

workloads:
"""
_MEASURES = ("ttft_s", "tpot_s", "itl_s", "jct_s", "lateness_s")


def add(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand."""
    parser = subparsers.add_parser(
        "replay",
        help="generate load from a trace or an arrival process",
        description=_DESCRIPTION + HELP,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workload", metavar="WORKLOAD", help="a file or a specification")
    parser.add_argument("--duration", type=number(0, above=True), metavar="S", help="only its first S seconds")
    parser.add_argument(
        "--speed", type=number(0, above=True), default=1.0, metavar="X", help="X times as fast (default: 1)"
    )
    parser.add_argument(
        "--seed", type=whole_number(0), default=0, metavar="N", help="seed of what is drawn at random (default: 0)"
    )
    parser.add_argument(
        "--sampled", action="store_true", help="draw tokens with temperature 1 and a seed (default: greedy)"
    )
    parser.add_argument("--slo", action="append", default=[], metavar="LIMITS", help=SLO_HELP)
    parser.add_argument(
        "--door",
        choices=("grpc", "http"),
        default="grpc",
        help="the way in (default: grpc); http: of the cluster in --data-dir",
    )
    parser.add_argument("--save", type=Path, metavar="FILE", help="write figures and every request as JSON")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the run, for `dunlin sim --against`")
    add_cluster_options(parser)
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Replay it; exit code 1 if a request failed or was refused."""
    from dunlin.workload.loadgen.slo import meets_slo, parse_slos
    from dunlin.workload.loadgen.stats import summarize
    from dunlin.workload.traffic.workload_spec import read_workload

    if arguments.door == "http" and arguments.endpoint:
        raise CliError("--door http: only the cluster in --data-dir tells where that door is; drop --endpoint", USAGE)
    try:
        slos = parse_slos(arguments.slo)
        arrivals = read_workload(arguments.workload, arguments.seed, arguments.duration)
    except ValueError as error:
        raise CliError(str(error), USAGE) from None
    endpoint = find_endpoint(arguments)
    with sdk_errors_as_cli(endpoint):
        played = asyncio.run(_replay(arguments, arrivals, endpoint))
    found = summarize(played.records, meets_slo(played.records, slos) if slos else None)
    if arguments.save:
        _save(arguments.save, found, played.records)
    print(as_json(found) if arguments.json else render(found))
    return OK if found.completed == found.requests else FAILED


async def _replay(arguments: argparse.Namespace, arrivals: "list[Arrival]", endpoint: str) -> "RecordedRun":
    import dunlin
    from dunlin.workload.loadgen.load_generator import LoadGenerator
    from dunlin.workload.loadgen.run_record import RecordedRun
    from dunlin.workload.loadgen.targets import SdkTarget
    from dunlin.workload.traffic.prompts import make_jobs

    async with dunlin.AsyncClient(endpoint, **client_keywords(arguments)) as client:
        info = await client.info()
        sizes = info.max_positions, info.vocabulary
        jobs = make_jobs(arrivals, *sizes, arguments.seed, arguments.speed, arguments.sampled)
        before = await client.status() if arguments.record else None
        opening = nullcontext(SdkTarget(client)) if arguments.door == "grpc" else _http(arguments, info.model)
        async with opening as door:
            run = RecordedRun({}, arrivals, await _watched(LoadGenerator(jobs, door), len(jobs), jobs[-1].at_s))
        if before is not None:
            _record(arguments, run, {"info": info, "before": before, "after": await client.status()})
        return run


def _record(arguments: argparse.Namespace, run: "RecordedRun", cluster: dict[str, object]) -> None:
    from cli.common.cluster import find_cluster
    from dunlin import __version__
    from dunlin.engine.device.names import CPU, computed_by
    from dunlin.workload.loadgen.run_record import write_run

    asked = {
        name: getattr(arguments, name) for name in ("workload", "duration", "speed", "seed", "sampled", "door", "slo")
    }
    launched = None if arguments.endpoint else find_cluster(arguments.data_dir)
    settings = None if launched is None else _settings(Path(launched.data_dir))
    facts = {"version": __version__, "asked": asked, "launched": launched, "settings": settings, **cluster}
    if settings is not None:
        facts["processor"] = computed_by(settings.get("instance.engine.device", CPU))
    try:
        write_run(arguments.record, replace(run, facts=to_json_value(facts)))
    except OSError as error:
        raise CliError(f"{arguments.record}: cannot be written ({error.strerror})", USAGE) from None


def _settings(data_dir: Path) -> dict[str, Any]:
    """The settings of the cluster that `dunlin up` started there, but for those of files, doors and sockets."""
    from cli.launch.local_cluster import SETTINGS_FILE
    from dunlin.config.errors import ConfigError
    from dunlin.config.sources import from_file
    from services.settings import is_simulated

    try:
        given = from_file(data_dir / SETTINGS_FILE)
    except ConfigError as error:
        raise CliError(str(error), USAGE) from None
    return {one.name: one.value for one in given if is_simulated(one.name) or one.name.startswith("instance.engine.")}


async def _watched(load: "LoadGenerator", total: int, last_s: float) -> "list[RequestRecord]":
    from dunlin.workload.loadgen.progress_line import ProgressLine, bar

    line = ProgressLine(sys.stderr)
    running = asyncio.create_task(load.run())
    try:
        while not running.done():
            await asyncio.wait([running], timeout=0.2)
            now_s, sent = load.now_s(), len(load.records)
            counts = f"{sent}/{total} sent, {load.open} open, {load.failed} failed"
            line.show(now_s, f"{bar(now_s / max(last_s, 0.1))} {now_s:5.0f}/{last_s:.0f} s  {counts}")
    finally:
        line.close()
        running.cancel()
    return await running


def _http(arguments: argparse.Namespace, model: str) -> "HttpTarget":
    from cli.common.cluster import find_cluster
    from dunlin.client.credentials import load_credentials

    try:
        from dunlin.workload.loadgen.http_client import HttpTarget
    except ModuleNotFoundError as error:
        raise CliError(f"--door http: {missing_package_text(error.name)}", USAGE) from None
    url = find_cluster(arguments.data_dir).http.split(",")[0]
    return HttpTarget(url, model, load_credentials(client_keywords(arguments)["tls_dir"], None))


def _save(path: Path, found: "RunReport", records: "Sequence[RequestRecord]") -> None:
    try:
        path.write_text(as_json({"report": found, "requests": records}) + "\n")
    except OSError as error:
        raise CliError(f"{path}: cannot be written ({error.strerror})", USAGE) from None


def render(found: "RunReport") -> str:
    """The figures as a table, times in milliseconds."""
    rows = [
        (
            name.removesuffix("_s").upper(),
            *(_milliseconds(getattr(getattr(found, name), q)) for q in ("p50", "p90", "p99", "max")),
        )
        for name in _MEASURES
    ]
    head = (
        f"{found.completed} of {found.requests} requests completed, {found.refused} refused, "
        f"{found.expired} expired, {found.errors} failed, "
        f"in {found.span_s:.1f} s; {found.unanswered} without a first token\n"
        f"{found.requests_per_s:.2f} requests/s, {found.output_tokens_per_s:.1f} output tokens/s; "
        f"{found.clipped} requests clipped ({found.clipped_share:.1%})\n"
    )
    if found.slo_attainment is not None:
        head += f"SLO met by {found.slo_attainment:.1%}: goodput {found.goodput_per_s:.2f} requests/s\n"
    errors = "".join(f"\nerror: {text}" for text in found.first_errors)
    return f"{head}\n{table(('ms', 'p50', 'p90', 'p99', 'max'), rows)}{errors}"


def _milliseconds(seconds: float) -> str:
    return "never" if seconds == inf else f"{1000 * seconds:.1f}"
