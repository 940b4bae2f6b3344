"""Which names a checkout's engine has."""

from pathlib import Path

import pytest

from benchmarks.engine.contestants.trees import engine_parts
from benchmarks.harness.processes import ROOT
from dunlin.engine.execution.runner import EngineRunner
from dunlin.messages.engine import Step


def test_the_parts_of_this_tree_are_found() -> None:
    parts = engine_parts(ROOT)
    assert (parts.runner, parts.step) == (EngineRunner, Step)


def test_a_folder_without_an_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no checkout of dunlin"):
        engine_parts(tmp_path)
