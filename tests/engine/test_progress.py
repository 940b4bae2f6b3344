"""The shared counter."""

import os

from dunlin.engine.progress import ProgressCounter


def test_another_mapping_sees_every_safepoint_and_a_new_engine_goes_on() -> None:
    fd = os.memfd_create("progress")
    reader, writer = ProgressCounter(fd), ProgressCounter(fd)
    for _ in range(3):
        writer.pass_safepoint()
    assert reader.passed == 3
    ProgressCounter(fd).pass_safepoint()
    assert reader.passed == 4
