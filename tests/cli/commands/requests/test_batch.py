"""`dunlin batch` without a cluster: what it says, and the files that it leaves alone."""

from pathlib import Path

import pytest

from cli.common.errors import UNREACHABLE, USAGE
from cli.main import main


def test_results_stay_when_there_are_none_to_replace_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept, fresh = tmp_path / "answers.jsonl", tmp_path / "fresh.jsonl"
    kept.write_text("{}\n")
    for path in (kept, fresh):
        words = ("batch", "fetch", "batch_1", "--output", str(path), "--endpoint", "127.0.0.1:1")
        assert main(words) == UNREACHABLE
    assert "no cluster answers" in capsys.readouterr().err
    assert kept.read_text() == "{}\n"
    assert not fresh.exists()


def test_an_input_that_is_not_there_is_told_before_anything_is_fetched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ("--output", str(tmp_path / "a"), "--errors", str(tmp_path / "b"), "--check", str(tmp_path / "none"))
    assert main(("batch", "fetch", "batch_1", *files, "--endpoint", "127.0.0.1:1")) == USAGE
    assert "none: no such file, for --check" in capsys.readouterr().err
