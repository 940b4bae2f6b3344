"""`dunlin batch`: batch jobs from the command line."""

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from cli.commands.requests.batch_progress import BatchProgress, show
from cli.common.cluster import connect
from cli.common.errors import FAILED, OK, USAGE, CliError
from cli.common.options import Subparsers, add_cluster_options, add_json, number
from cli.common.output import as_json, table

if TYPE_CHECKING:
    from dunlin.client import BatchJob, Client

_SUBMIT = """\
Upload FILE, one request in JSON per line as OpenAI's batches have them, and begin a job over it.

examples:
  dunlin batch submit requests.jsonl
  dunlin batch submit requests.jsonl --window 3d --label owner=ann --wait
"""
_FETCH = """\
Write the results that a job has so far: output lines, and error lines to --errors. The lines are in the order of the
input. With --check the input file is read beside them, and each of its lines must have one whole result.

examples:
  dunlin batch fetch batch_6fd1 --output answers.jsonl --errors errors.jsonl
"""
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
ENDPOINT = "/v1/completions"


def add(subparsers: "Subparsers[argparse.ArgumentParser]") -> None:
    """The subcommand and its own."""
    parser = subparsers.add_parser("batch", help="batch jobs", description="Batch jobs: submit, follow, fetch, cancel.")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_submit(commands)
    status = _command(commands, "status", "Print a job, or all of them.", run_status)
    status.add_argument("batch", nargs="?", metavar="BATCH", help="its name (default: the newest jobs)")
    add_json(status)
    wait = _command(commands, "wait", "Follow a job until it ends.", run_wait)
    wait.add_argument("batch", metavar="BATCH", help="its name")
    _add_poll(wait)
    fetch = _command(commands, "fetch", _FETCH, run_fetch)
    fetch.add_argument("batch", metavar="BATCH", help="its name")
    fetch.add_argument("--output", type=Path, metavar="FILE", help="for output lines (default: standard output)")
    fetch.add_argument("--errors", type=Path, metavar="FILE", help="for error lines (default: they are not fetched)")
    fetch.add_argument("--check", type=Path, metavar="FILE", help="the job's input, to compare (needs both others)")
    cancel = _command(commands, "cancel", "Cancel a job; what it has stays.", run_cancel)
    cancel.add_argument("batch", metavar="BATCH", help="its name")


def _add_submit(commands: "Subparsers[argparse.ArgumentParser]") -> None:
    submit = _command(commands, "submit", _SUBMIT, run_submit)
    submit.add_argument("file", type=Path, metavar="FILE", help="the requests")
    submit.add_argument("--request-path", metavar="PATH", help="what the lines' url is (default: that of the first)")
    submit.add_argument("--window", type=window, default=86_400.0, metavar="TIME", help="as 24h (default), 90m or 3d")
    submit.add_argument(
        "--label", type=_label, action="append", default=[], metavar="NAME=VALUE", help="kept with the job (repeatable)"
    )
    submit.add_argument("--wait", action="store_true", help="follow the job until it ends")
    _add_poll(submit)


def _command(
    commands: "Subparsers[argparse.ArgumentParser]", name: str, text: str, run: Callable[[argparse.Namespace], int]
) -> argparse.ArgumentParser:
    parser = commands.add_parser(
        name, help=text.partition(".")[0], description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_cluster_options(parser)
    parser.set_defaults(run=run)
    return parser


def _add_poll(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--poll", type=number(0, above=True), default=1.0, metavar="S", help="seconds between two looks (default: 1)"
    )


def window(text: str) -> float:
    """An argparse type: seconds of a time such as 24h."""
    unit = _UNITS.get(text[-1:])
    if unit is None or not text[:-1].isdecimal() or not int(text[:-1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 24h, 90m or 3d")
    return float(text[:-1]) * unit


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


def run_submit(arguments: argparse.Namespace) -> int:
    """Begin a job; its name goes to standard output."""
    path: Path = arguments.file
    request_path = arguments.request_path or _request_path(path)
    with connect(arguments) as client:
        job = client.batches.create(path, request_path, window_s=arguments.window, metadata=dict(arguments.label))
        print(job.batch, flush=True)
        return _wait(client, job.batch, arguments.poll) if arguments.wait else OK


def _request_path(path: Path) -> str:
    """The url of the first line; one that has none is told by the job."""
    try:
        with path.open("rb") as file:
            first = json.loads(file.readline())
    except OSError as error:
        raise CliError(f"{path}: cannot be read ({error.strerror})", USAGE) from None
    except ValueError:
        return ENDPOINT
    found = first.get("url") if isinstance(first, dict) else None
    return found if isinstance(found, str) else ENDPOINT


def run_status(arguments: argparse.Namespace) -> int:
    """Print one job, or a table of the newest."""
    with connect(arguments) as client:
        if arguments.batch is not None:
            job = client.batches.get(arguments.batch)
            print(as_json(job) if arguments.json else show(job))
            return OK
        jobs = client.batches.list(limit=100).batches
        print(as_json(jobs) if arguments.json else _table(jobs))
    return OK


def _table(jobs: "Iterable[BatchJob]") -> str:
    rows = [(job.batch, job.status, str(job.total), str(job.completed), str(job.failed)) for job in jobs]
    return table(("batch", "status", "lines", "answered", "failed"), rows)


def run_wait(arguments: argparse.Namespace) -> int:
    """Follow a job with a progress bar; exit code 1 unless it is completed."""
    with connect(arguments) as client:
        return _wait(client, arguments.batch, arguments.poll)


def _wait(client: "Client", batch: str, poll_s: float) -> int:
    progress = BatchProgress(sys.stderr)
    try:
        job = client.batches.wait(batch, poll_s=poll_s, on_progress=progress.update)
    finally:
        progress.end()
    print(show(job), file=sys.stderr)
    return OK if job.status == "completed" else FAILED


def run_fetch(arguments: argparse.Namespace) -> int:
    """Write results to files; exit code 1 if --check finds a line without exactly one whole result."""
    if arguments.check and not (arguments.output and arguments.errors):
        raise CliError("--check compares files: give --output and --errors too", USAGE)
    if arguments.check and (not arguments.check.exists() or arguments.check.is_dir()):
        raise CliError(f"{arguments.check}: no such file, for --check", USAGE)
    with connect(arguments) as client:
        _save(arguments.output, client.batches.content(arguments.batch))
        if arguments.errors is not None:
            _save(arguments.errors, client.batches.content(arguments.batch, errors=True))
    return _check(arguments.check, arguments.output, arguments.errors) if arguments.check else OK


def _save(path: Path | None, parts: Iterable[bytes]) -> None:
    if path is None:
        for part in parts:
            sys.stdout.buffer.write(part)
        sys.stdout.buffer.flush()
        return
    parts = iter(parts)
    first = next(parts, b"")  # before the file is emptied: the cluster may be away, or know no such job
    try:
        with path.open("wb") as file:
            file.write(first)
            file.writelines(parts)
    except OSError as error:
        raise CliError(f"{path}: cannot be written ({error.strerror})", USAGE) from None


def _check(input_file: Path, output: Path, errors: Path) -> int:
    from services.dispatcher.batches.results_check import broken_results

    with input_file.open("rb") as lines, output.open("rb") as good, errors.open("rb") as bad:
        complaints = broken_results(lines, good, bad)
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    return FAILED if complaints else OK


def run_cancel(arguments: argparse.Namespace) -> int:
    """Cancel a job."""
    with connect(arguments) as client:
        print(show(client.batches.cancel(arguments.batch)))
    return OK
