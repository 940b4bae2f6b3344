"""What a run found: figures in order with what they are worth, and what did not hold; as text and as JSON."""

import json
import platform
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch


def usual_facts() -> dict[str, str]:
    """Of every run: what computed, and when."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return {"torch": torch.__version__, "Python": platform.python_version(), "day": day}


@dataclass(slots=True)
class Results:
    """Owns them. `skipped`: what was not run, and why."""

    device: str
    command: str
    facts: dict[str, str] = field(default_factory=dict)
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    def file_name(self, kind: str) -> str:
        """Of such a run's page, after the device."""
        words = "".join(each if each.isalnum() else " " for each in self.device.lower()).split()
        return "-".join([kind, *words])

    def put(self, part: str, name: str, value: Any) -> None:
        """A figure of a part, said at once: a run that is cut off leaves it in the log."""
        self.figures.setdefault(part, {})[name] = value
        print(f"{part} | {name} | {_text(value)}", file=sys.stderr, flush=True)

    def expect(self, holds: bool, otherwise: str) -> None:
        """Note `otherwise` unless it holds."""
        if not holds:
            self.failures.append(otherwise)
            print(f"BROKEN: {otherwise}", file=sys.stderr, flush=True)

    def attempt(self, name: str, work: Callable[[], None], until_s: float) -> None:
        """Do one part of a run; what goes wrong there does not end the others. None begins after `until_s`."""
        began_s = time.monotonic()
        if began_s >= until_s:
            self.skipped.append(f"{name}: no time left")
            return
        try:
            work()
        except Exception as error:
            traceback.print_exc()
            self.failures.append(f"{name}: {type(error).__name__}: {error}")
        self.put("seconds of each part", name, round(time.monotonic() - began_s, 1))

    def write(self, folder: Path, name: str) -> None:
        """`name`.md and `name`.json; written again and again while a run goes on."""
        folder.mkdir(parents=True, exist_ok=True)
        whole = {
            "device": self.device, "command": self.command, "facts": self.facts, "figures": self.figures,
            "broken": self.failures, "skipped": self.skipped,
        }  # fmt: skip
        (folder / f"{name}.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
        (folder / f"{name}.md").write_text(self.text(), encoding="utf-8")

    def text(self) -> str:
        """As a page."""
        lines = [f"# The engine on {self.device}", "", f"`{self.command}`", ""]
        lines += [f"- {name}: {value}" for name, value in self.facts.items()]
        lines += ["", "Everything held." if not self.failures else "**Did not hold:**"]
        lines += [f"- {each}" for each in self.failures]
        lines += [f"- not run: {each}" for each in self.skipped]
        for part, figures in self.figures.items():
            lines += ["", f"## {part}", "", "| | |", "|---|---|"]
            lines += [f"| {name} | {_text(value)} |" for name, value in figures.items()]
        return "\n".join(lines) + "\n"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(each)}" for name, each in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
