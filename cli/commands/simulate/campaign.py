"""`dunlin sim --campaign`: random clusters, loads and faults in virtual time, all invariants checked.

The simulator is loaded when a campaign runs.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TextIO

from cli.common.errors import USAGE, CliError
from dunlin.runtime.extras import missing_package_text

if TYPE_CHECKING:
    from simulator.campaign.outcome import TrialOutcome
    from simulator.campaign.plans import TrialPlan
    from simulator.campaign.runner import CampaignSummary, FailingSeed


BAR = 20
"""Characters of the progress bar."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags of a campaign."""
    group = parser.add_argument_group("campaigns (--campaign)")
    group.add_argument("--campaign", action="store_true", help="run seeds of random faults; exit code 1 on a violation")
    group.add_argument("--seeds", type=_positive, default=100, metavar="N", help="how many seeds (default: 100)")
    group.add_argument("--first-seed", type=int, default=0, metavar="K", help="the first of them (default: 0)")
    group.add_argument(
        "--search", action="store_true",
        help="let what runs cover decide which plans are changed and run again; --seeds is how many plans run",
    )  # fmt: skip
    group.add_argument("--plan", metavar="NAME", help="one plan of a search again, by the name that it was reported by")
    group.add_argument("--jobs", type=_positive, default=1, metavar="J", help="processes to share them, or the presets")
    group.add_argument("--only-requests", type=_numbers, metavar="A,B", help="of the plan, these requests alone")
    group.add_argument("--only-faults", type=_numbers, metavar="A,B", help="of the plan, these faults alone")
    group.add_argument("--shrink-runs", type=int, default=100, metavar="N", help="runs to shrink a failing seed with")
    group.add_argument("--coverage", action="store_true", help="print what was exercised")


def run_campaign(arguments: argparse.Namespace) -> int:
    """Run it; the exit code."""
    _load("simulator.campaign.runner")
    if arguments.search or arguments.plan is not None:
        return _report_all(arguments, _searched(arguments))
    return _report_all(arguments, _sampled(arguments))


def _sampled(arguments: argparse.Namespace) -> "CampaignSummary":
    """Run the plans of consecutive seeds."""
    from simulator.campaign.runner import run_campaign as run

    part = _part(arguments)
    if arguments.jobs > 1 and (arguments.only_requests is not None or arguments.only_faults is not None):
        raise CliError("--only-requests and --only-faults are about one seed: leave --jobs out", USAGE)
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    settings: dict[str, Any] = {"part": part} if part is not None else {}
    return run(
        seeds,
        on_outcome=CampaignProgress(len(seeds), sys.stderr),
        jobs=arguments.jobs,
        shrink_runs=arguments.shrink_runs,
        **settings,
    )


def _searched(arguments: argparse.Namespace) -> "CampaignSummary":
    """Search, or run one plan of a search."""
    from simulator.campaign.search.search import replay_plan, search_plans

    if arguments.preset is not None:
        raise CliError("--preset: a search draws its presets, restless and elastic plans too; leave it out", USAGE)
    requests, faults = arguments.only_requests, arguments.only_faults
    if arguments.plan is not None:
        try:
            return replay_plan(arguments.plan, requests, faults, arguments.shrink_runs)
        except ValueError:
            raise CliError(f"--plan {arguments.plan}: a name as 7 or 7.1.3 is needed", USAGE) from None
    if requests is not None or faults is not None:
        raise CliError("--only-requests and --only-faults are about one plan: name it by --plan", USAGE)
    progress = CampaignProgress(arguments.seeds, sys.stderr)
    return search_plans(arguments.first_seed, arguments.seeds, progress, arguments.jobs, arguments.shrink_runs)


def _report_all(arguments: argparse.Namespace, summary: "CampaignSummary") -> int:
    """Print what a campaign found; the exit code."""
    for found in summary.found:
        print(_report(found))
    if arguments.coverage:
        print(summary.coverage.report())
    print(summary.excuses())
    print(summary.line())
    return 1 if summary.found else 0


class CampaignProgress:
    """How far the campaign is, on stderr: one line that changes on a terminal, a line a minute elsewhere; and each
    violation when it is found, for the whole report comes at the end.
    """

    def __init__(self, seeds: int, out: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._seeds = seeds
        self._out = out
        self._clock = clock
        self._begin, self._every_s, self._end = ("\r", 5.0, "") if out.isatty() else ("", 60.0, "\n")
        self._done = self._violations = 0
        self._began_s = self._shown_s = clock()

    def __call__(self, outcome: "TrialOutcome") -> None:
        self._done += 1
        if outcome.violation is not None:
            self._violations += 1
            print(f"{self._begin}{outcome.label}: {outcome.violation}", file=self._out, flush=True)
        if self._clock() - self._shown_s >= self._every_s:
            self._shown_s = self._clock()
            print(f"{self._begin}{self._text()}", end=self._end, file=self._out, flush=True)

    def _text(self) -> str:
        per_min = 60.0 * self._done / (self._shown_s - self._began_s)
        left_min = (self._seeds - self._done) / per_min
        bar = "#" * (BAR * self._done // self._seeds)
        return (
            f"[{bar:.<{BAR}}] {self._done:,} of {self._seeds:,} seeds, {self._violations} violations; "
            f"{per_min:.0f} seeds a minute, "
            f"{left_min:.0f} minutes left"
        )


def _report(found: "FailingSeed") -> str:
    part = found.smallest or found.plan
    lines = [
        f"{found.outcome.label}: {found.outcome.violation}",
        f"  replay:   {found.replay()}",
        f"  smallest: {found.replay_smallest()}",
        f"            ({len(part.requests)} requests and {len(part.faults)} faults of {len(found.plan.requests)} and "
        f"{len(found.plan.faults)}, after {found.runs} runs)",
    ]
    return "\n".join([*lines, *(f"            {fault}" for fault in part.faults)])


def _part(arguments: argparse.Namespace) -> "Callable[[TrialPlan], TrialPlan] | None":
    """What to run of the plan, and how; None: all of it."""
    from simulator.campaign.runner import PARTS, whole_plan

    requests, faults, preset = arguments.only_requests, arguments.only_faults, arguments.preset
    if preset is not None and preset not in PARTS:
        choices = " or ".join(f"`--preset {name}`" for name in PARTS)
        raise CliError(f"--preset {preset}: a campaign draws its presets; add {choices} or none", USAGE)
    of_preset = PARTS[preset] if preset is not None else whole_plan
    if requests is None and faults is None:
        return of_preset if preset else None

    def part(plan: "TrialPlan") -> "TrialPlan":
        return of_preset(plan).only(requests, faults)

    return part


def _load(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise CliError(missing_package_text(error.name), USAGE) from None


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text}: at least 1 is needed")
    return number


def _numbers(text: str) -> frozenset[int]:
    try:
        return frozenset(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r}: numbers with commas between them are needed") from None
