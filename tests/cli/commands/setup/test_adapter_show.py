"""`dunlin model show` on a LoRA adapter: what it changes, and every reason why it cannot be served."""

import json
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from tests.engine.adapter_files import write_adapter
from tests.engine.build import make_checkpoint


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return make_checkpoint(tmp_path / "models", layers=2)


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["model", "show", *arguments, "--json"]) == code
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_what_an_adapter_changes(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_adapter(tmp_path / "a", model, ("q_proj", "down_proj"), rank=4, alpha=6, ranks={"q_proj": 3})
    found = shown(capsys, str(folder))
    assert found["base"] == str(model)
    assert found["modules"] == {"q_proj": 2, "down_proj": 2}
    assert (found["ranks"], found["scales"]) == ([3, 4], [1.5, 2.0])
    assert found["parameters"] == 2 * (3 * (96 + 96) + 4 * (160 + 96))
    assert found["memory_bytes_fp32"] == 4 * found["parameters"]
    assert (found["servable"], found["problems"]) == (True, [])
    assert main(["model", "show", str(folder)]) == 0
    assert "dunlin serves it  yes" in capsys.readouterr().out


def test_every_reason_against_it_is_listed(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_adapter(tmp_path / "a", model, use_dora=True, bias="all")
    found = shown(capsys, str(folder), code=1)
    assert [problem.split("`")[1] for problem in found["problems"]] == ["use_dora", "bias"]


def test_its_model_may_be_named(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_checkpoint(tmp_path / "other", layers=3)
    folder = write_adapter(tmp_path / "a", model, base_model_name_or_path="some/where-else")
    assert main(["model", "show", str(folder)]) == 2
    assert "say --base DIR" in capsys.readouterr().err
    assert shown(capsys, str(folder), "--base", str(model))["servable"]
    assert "missing" in shown(capsys, str(folder), "--base", str(other), code=1)["problems"][0]
