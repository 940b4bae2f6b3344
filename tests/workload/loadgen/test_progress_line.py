"""The line that shows how far a run is: redrawn on a terminal, written now and then into a file."""

import io

import pytest

from dunlin.workload.loadgen.progress_line import ProgressLine, bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("share", "drawn"), [(0.0, "░░░░"), (0.5, "██░░"), (0.9, "████"), (1.0, "████"), (7.0, "████"), (-1.0, "░░░░")]
)
def test_a_bar_is_filled_to_its_share(share: float, drawn: str) -> None:
    assert bar(share, 4) == drawn


def test_on_a_terminal_each_line_takes_the_place_of_the_one_before() -> None:
    terminal = Terminal()
    line = ProgressLine(terminal)
    line.show(0.0, "half way")
    line.show(0.01, "done")
    assert terminal.getvalue() == "\rhalf way\rdone    ", "what was longer is wiped out"
    line.close()
    assert terminal.getvalue().endswith("done    \n")


def test_a_terminal_on_which_nothing_was_shown_is_left_as_it_is() -> None:
    terminal = Terminal()
    ProgressLine(terminal).close()
    assert terminal.getvalue() == ""


def test_into_a_file_a_line_is_written_every_15_seconds() -> None:
    file = io.StringIO()
    line = ProgressLine(file)
    for at_s in (0.0, 1.0, 14.9, 15.0, 29.9, 31.0):
        line.show(at_s, f"at {at_s:g}")
    line.close()
    assert file.getvalue() == "at 0\nat 15\nat 31\n"
