"""Fit the devices of `dunlin/cost/devices` to measured tables, and print how far the fits are from points left out.

`python -m benchmarks.simulation.device_fit --tables FOLDER [--write] [--json FILE]`: the folder holds the
calibration tables; `--write`
renews the coefficients that ship. Needs numpy.
"""

import argparse
import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import dunlin.cost
from cli.profiling.fitting.calibrate import fit_device
from cli.profiling.fitting.datasheets import DEVICES
from cli.profiling.fitting.fitted_parts import FitError
from cli.profiling.fitting.tables import TableError
from cli.profiling.fitting.validation import (
    KERNELS_ALONE,
    fit_strategies,
    step_errors,
    strategy_errors,
    unseen_iterations,
    whole_iterations,
)

GOAL, LIMIT = 0.05, 0.10


def main() -> int:
    """0: every part of every device is within the limit on average; 1: some part is not; 2: no tables."""
    options = _parser().parse_args()
    found: dict[str, list[FitError]] = {}
    try:
        for name, facts in DEVICES.items():
            device, found[name] = fit_device(facts, options.tables)
            found[f"{name}, composed"] = step_errors(device, options.tables)
            if options.write:
                _write(name, device.as_json())
        found["a800, whole iterations"] = whole_iterations(options.tables)
        found["a800, 8 GPUs, whole iterations that no fit saw"] = unseen_iterations(options.tables)
        if options.write:
            strategies = fit_strategies(options.tables)
            _write(f"{strategies.name}.strategies", strategies.as_json())
        found["a800, equation 7"] = strategy_errors(options.tables)
    except TableError as error:
        print(f"benchmarks.simulation.device_fit: {error}", file=sys.stderr)
        return 2
    for name, errors in found.items():
        print(f"\n{name}\n" + "\n".join(table(errors)))
    if options.json:
        plain = {name: [asdict(error) for error in errors] for name, errors in found.items()}
        options.json.write_text(json.dumps(plain, indent=1))
    beyond = [e for errors in found.values() for e in errors if e.mean > LIMIT and not e.part.endswith(KERNELS_ALONE)]
    print(f"\n{len(beyond)} parts are beyond {LIMIT:.0%} on average")
    return 1 if beyond else 0


def table(errors: Iterable[FitError]) -> list[str]:
    """Lines of a Markdown table."""
    lines = ["| part | regime | points | mean | median | p90 | |", "|---|---|--:|--:|--:|--:|---|"]
    for error in errors:
        mark = "" if error.mean <= GOAL else ("over the goal" if error.mean <= LIMIT else "**over the limit**")
        figures = f"{error.mean:.1%} | {error.median:.1%} | {error.p90:.1%}"
        lines.append(f"| {error.part} | {error.regime} | {error.points} | {figures} | {mark} |")
    return lines


def _write(name: str, plain: dict[str, object]) -> None:
    path = Path(dunlin.cost.__file__).parent / "devices" / f"{name}.json"
    body = ",\n".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in plain.items())
    path.write_text("{\n" + body + "\n}\n")
    print(f"wrote {path}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation.device_fit", description=__doc__)
    parser.add_argument("--tables", type=Path, required=True, help="the folder of calibration tables")
    parser.add_argument("--write", action="store_true", help="renew the coefficients in dunlin/cost/devices")
    parser.add_argument("--json", type=Path, help="also write the errors to this file")
    return parser


if __name__ == "__main__":
    sys.exit(main())
