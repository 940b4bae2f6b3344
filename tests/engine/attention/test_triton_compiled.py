"""Attention's tiles compile for a Hopper GPU, and its processors have the shared memory that they take."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")
HOPPER_SHARED_BYTES = 227 << 10


def test_tiles_fit_a_processor_whatever_a_heads_width() -> None:
    program = [sys.executable, "-m", "tests.engine.attention.compile_for_hopper", "128", "256"]
    ended = subprocess.run(
        program, env={**os.environ, "TRITON_INTERPRET": "0"}, capture_output=True, text=True, check=False, timeout=300
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert len(lines) == 17
    assert [line for line in lines if int(line[-1]) > HOPPER_SHARED_BYTES] == []
