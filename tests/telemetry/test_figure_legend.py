"""Every figure that a decision can record has a meaning in words."""

import re
from pathlib import Path

from dunlin.messages.dispatch import Cancel
from dunlin.messages.types import Figure, Why
from dunlin.policies.dispatch import DISPATCH_POLICIES, DispatchCandidate
from dunlin.telemetry.figure_legend import MEANINGS, figure_meanings

ROOT = Path(__file__).parents[2]


def recorded() -> set[str]:
    """Names of figures in the sources of services and policies, and those that placement policies compute."""
    files = [*(ROOT / "services").rglob("*.py"), *(ROOT / "dunlin/policies").rglob("*.py")]
    written = {name for file in files for name in re.findall(r'Figure\(\s*"(\w+)"', file.read_text())}
    chosen = [policy(1, [DispatchCandidate("i0", 8, 8, 0)]) for policy in DISPATCH_POLICIES.values()]
    return written | {figure.name for choice in chosen for figure in choice.why.figures}


def test_each_figure_has_a_meaning_and_each_meaning_a_figure() -> None:
    assert recorded() == set(MEANINGS)


def test_a_legend_names_each_figure_once() -> None:
    why = Why("p", "x", (Figure("slots", 1), Figure("load", 2)))
    messages = [Cancel(1, 1, why), Cancel(1, 2, why), Cancel(1, 3)]
    assert figure_meanings(messages) == [("load", MEANINGS["load"]), ("slots", MEANINGS["slots"])]
