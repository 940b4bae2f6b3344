"""Which names a checkout's engine has."""

from pathlib import Path

import pytest

from benchmarks.engine.contestants import trees
from benchmarks.engine.contestants.trees import engine_parts
from benchmarks.harness.processes import ROOT
from dunlin.engine.decoder.numerics import choose_fast_numerics, linear
from dunlin.engine.execution.runner import EngineRunner
from dunlin.messages.engine import Step
from tests.engine.build import load, make_checkpoint


def test_the_parts_of_this_tree_are_found() -> None:
    parts = engine_parts(ROOT)
    assert (parts.runner, parts.step) == (EngineRunner, Step)


def test_a_checkout_is_known_by_where_it_loads_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    older = tmp_path / "dunlin" / "engine" / "decoder" / "loader.py"
    older.parent.mkdir(parents=True)
    older.touch()
    looked_up: list[str] = []
    monkeypatch.setattr(trees, "_look_up", looked_up.append)
    engine_parts(tmp_path)
    assert "engine.decoder.loader.load_model" in looked_up


def test_a_folder_without_an_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no checkout of dunlin"):
        engine_parts(tmp_path)


def test_the_engine_is_measured_with_what_its_process_chooses() -> None:
    chosen, _ = choose_fast_numerics()
    found = engine_parts(ROOT).numerics()
    assert type(found.attention) is type(chosen.attention)
    assert (found.linear is linear) == (chosen.linear is linear)


def test_decode_steps_are_measured_by_what_its_process_takes(tmp_path: Path) -> None:
    decoder = load(make_checkpoint(tmp_path)).decoder
    assert engine_parts(ROOT).options(decoder).keys() == {"begin_segments", "pacer"}
