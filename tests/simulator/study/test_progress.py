"""The progress line of a study: on a terminal alone, at most ten times a second."""

from io import StringIO

from simulator.study.progress import StudyProgress


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_line_names_the_run_its_share_and_the_seconds_since_the_start() -> None:
    stream, clock = Terminal(), Clock()
    progress = StudyProgress(stream, 3, clock)
    progress.finished()
    clock.now_s += 65.0
    progress.show("chunked", 0.5)
    assert stream.getvalue() == "\r" + "█" * 12 + "░" * 12 + "  50%  chunked  (2 of 3, 65 s)"


def test_between_two_lines_a_tenth_of_a_second_passes_unless_a_run_ends() -> None:
    stream, clock = Terminal(), Clock()
    progress = StudyProgress(stream, 1, clock)
    for at_s, share in ((0.0, 0.1), (0.0625, 0.2), (0.125, 0.3), (0.1875, 1.0)):
        clock.now_s = 100.0 + at_s
        progress.show("a", share)
    assert [share in stream.getvalue() for share in (" 10%", " 20%", " 30%", "100%")] == [True, False, True, True]


def test_the_line_is_ended_once_something_was_shown() -> None:
    stream = Terminal()
    StudyProgress(stream, 1, Clock()).close()
    assert stream.getvalue() == ""
    progress = StudyProgress(stream, 1, Clock())
    progress.show("a", 0.0)
    progress.close()
    assert stream.getvalue().endswith("\n")


def test_into_a_file_nothing_is_written() -> None:
    stream = StringIO()
    progress = StudyProgress(stream, 1, Clock())
    progress.show("a", 1.0)
    progress.finished()
    progress.close()
    assert stream.getvalue() == ""
