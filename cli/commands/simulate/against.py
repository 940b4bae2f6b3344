"""`dunlin sim --against RUN`: a recorded live run again in virtual time, and how far the figures are apart."""

import argparse
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from cli.commands.measure.profile_show import coarse_profile_note
from cli.common.errors import FAILED, OK, USAGE, CliError
from cli.common.output import table
from dunlin.cost import PROFILES_FILE

MAX_DIFFERENCE = 0.10


def add_options(parser: argparse.ArgumentParser) -> None:
    """What it takes."""
    group = parser.add_argument_group("a live run again")
    group.add_argument("--against", type=Path, metavar="RUN", help="what `dunlin replay --record` wrote")
    group.add_argument(
        "--profile",
        type=Path,
        metavar="DB",
        help="the store with the run's configuration, of `dunlin profile` (default: profiles.db in the data directory)",
    )


def run_against(arguments: argparse.Namespace) -> int:
    """Simulate and compare; exit code 1 if a figure differs by more than the limit."""
    from cli.commands.simulate.recorded_profile import load_recorded_timing
    from dunlin.cost.store import StoreError
    from dunlin.workload.loadgen.run_record import read_run
    from dunlin.workload.traffic.trace import TraceError

    # By name: the command line can be installed without the simulator.
    against = import_module("simulator.study.live_comparison")
    recorded = import_module("simulator.study.recorded_cluster")
    try:
        run = read_run(arguments.against)
        store = _store(arguments.profile)
        timing = load_recorded_timing(store, run.facts)
        simulated = against.resimulate_whole(run, timing)
        counts = _count_differences(run.facts, simulated.counts)
    except (TraceError, StoreError, recorded.RunError, OSError) as error:
        raise CliError(str(error), USAGE) from None
    found = against.differences(run.records, simulated.records)
    print(render(found))
    if counts:
        print("\n" + render_counts(counts))
    said = coarse_profile_note(str(store), timing)
    if said:
        print(f"\n{said}")
    return OK if all(abs(each.relative) <= MAX_DIFFERENCE for each in found) else FAILED


def _count_differences(facts: Mapping[str, Any], simulated: Mapping[str, int]) -> Sequence[Any]:
    """None, if the record does not hold the instances' counters at its end, as those of older versions."""
    against = import_module("simulator.study.live_comparison")
    counting = import_module("simulator.study.run_counts")
    if not isinstance(facts.get("after"), dict):
        return ()
    live = counting.recorded_counts(facts["before"], facts["after"])
    return against.count_differences(live, simulated)  # type: ignore[no-any-return]


def _store(given: Path | None) -> Path:
    from cli.launch.cluster_state import default_data_dir

    store = given or default_data_dir() / PROFILES_FILE
    if not store.is_file():
        raise CliError(f"{store}: no profile of this machine; `dunlin profile` makes one, --profile names one", USAGE)
    return store


def render(found: Sequence[Any]) -> str:
    """Live beside simulated, in milliseconds."""
    rows = [
        (
            f"{each.measure} {each.quantile}",
            f"{each.live_s * 1e3:.2f}",
            f"{each.simulated_s * 1e3:.2f}",
            f"{each.relative:+.1%}",
        )
        for each in found
    ]
    return table(("ms", "live", "simulated", "difference"), rows)


def render_counts(found: Sequence[Any]) -> str:
    """How often something happened, live beside simulated. No limit holds for a single run's counts: see
    `benchmarks.simulation.held_out`."""
    rows = [(each.name, f"{each.live:,}", f"{each.simulated:,}", f"{each.relative:+.1%}") for each in found]
    return table(("count", "live", "simulated", "difference"), rows)
