"""The shared page: progress one way, the stop word the other."""

import os

from dunlin.engine.process.progress_page import ProgressPage


def test_another_mapping_sees_all_progress_and_a_new_engine_goes_on() -> None:
    fd = os.memfd_create("progress")
    reader, writer = ProgressPage(fd), ProgressPage(fd)
    for _ in range(3):
        writer.count()
    assert reader.passed == 3
    ProgressPage(fd).count()
    assert reader.passed == 4


def test_an_engine_is_called_until_it_has_heard_the_newest_interrupt() -> None:
    fd = os.memfd_create("progress")
    parent, engine = ProgressPage(fd), ProgressPage(fd)
    assert not engine.is_called()
    parent.call(7)
    assert engine.is_called()
    parent.call(8)
    engine.hear(7)
    assert engine.is_called(), "8 is still on its way"
    engine.hear(8)
    assert not engine.is_called()
    assert engine.passed == 0


def test_what_an_earlier_engine_was_called_for_is_over() -> None:
    fd = os.memfd_create("progress")
    ProgressPage(fd).call(7)
    assert not ProgressPage(fd).is_called()
