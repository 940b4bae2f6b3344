"""The shared counter."""

import os

from dunlin.engine.process.safepoint_counter import SafepointCounter


def test_another_mapping_sees_every_safepoint_and_a_new_engine_goes_on() -> None:
    fd = os.memfd_create("progress")
    reader, writer = SafepointCounter(fd), SafepointCounter(fd)
    for _ in range(3):
        writer.pass_safepoint()
    assert reader.passed == 3
    SafepointCounter(fd).pass_safepoint()
    assert reader.passed == 4
