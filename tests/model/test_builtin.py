"""Where the built-in model is kept."""

from pathlib import Path

import pytest

from dunlin.model.builtin import models_folder


def test_clusters_may_share_a_folder_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUNLIN_MODELS", raising=False)
    assert models_folder(Path("/d")) == Path("/d/models")
    monkeypatch.setenv("DUNLIN_MODELS", "/shared/models")
    assert models_folder(Path("/d")) == Path("/shared/models")
