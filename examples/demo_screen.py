"""What the audience of the demo sees: headings, words of the narrator, blocks that are redrawn in place."""

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence

from dunlin.messages.fleet import FleetStatus
from dunlin.workload.loadgen.load_generator import LoadGenerator
from dunlin.workload.loadgen.progress_line import bar


class DemoScreen:
    """What the audience sees: bold headings, and blocks that are redrawn in place where that is possible."""

    def __init__(self) -> None:
        self.live = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
        self.width = min(shutil.get_terminal_size((100, 24)).columns, 120)
        self._drawn = 0

    def heading(self, text: str) -> None:
        """The next act."""
        rule = "─" * max(0, self.width - len(text) - 4)
        print(f"\n{self._style('1;36', f'── {text} {rule}')}\n", flush=True)

    def note(self, text: str) -> None:
        """Words of the narrator."""
        print(self._style("2", textwrap.fill(text, self.width)), flush=True)

    def loud(self, text: str) -> str:
        """`text` in bold red."""
        return self._style("1;31", text)

    def draw(self, lines: Sequence[str]) -> None:
        """Show a block in place of the one drawn before; without a terminal nothing, until `settle`."""
        if self.live:
            up = f"\033[{self._drawn}A" if self._drawn else ""
            sys.stdout.write(up + "".join(f"\033[2K{line}\n" for line in lines))
            sys.stdout.flush()
            self._drawn = len(lines)

    def settle(self, lines: Sequence[str]) -> None:
        """The block as it stays."""
        if self.live:
            self.draw(lines)
        else:
            print("\n".join(lines), flush=True)
        self._drawn = 0

    def _style(self, code: str, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.live else text


def panels(texts: Sequence[str], width: int, height: int = 3) -> list[str]:
    """The last `height` lines of each text, one text below the other."""
    lines = []
    for number, text in enumerate(texts, start=1):
        wrapped = textwrap.wrap(" ".join(text.split()), width - 4)[-height:]
        wrapped += [""] * (height - len(wrapped))
        lines += [f"{number if i == 0 else ' '} │ {line}" for i, line in enumerate(wrapped)]
    return lines


def board(load: LoadGenerator, length_s: float, status: FleetStatus) -> list[str]:
    """One line for the load, one for each instance."""
    done = sum(record.end_s > 0 for record in load.records)
    now_s = min(load.now_s(), length_s)
    lines = [f"{bar(now_s / length_s, 20)} {now_s:4.1f} s   {len(load.records)} came, {done} done, {load.open} open"]
    for member in status.members:
        one = member.instance
        if one is not None:
            rows = "▮" * min(one.running, 40) + "▯" * min(one.waiting, 20)
            lines.append(f"{member.address.name:12} {one.running:3} running {one.tokens_total:7} tokens  {rows}")
    return lines
