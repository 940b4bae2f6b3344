"""Models that ship: where they are kept, what clients call them, and that each is made once and whole."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dunlin.model.builtin import models_folder, resolve_model, served_name
from dunlin.model.config import load_config
from dunlin.model.errors import ModelError
from dunlin.text.tokenizer import load_chat_template, load_tokenizer


def test_clusters_may_share_a_folder_of_models(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DUNLIN_MODELS", raising=False)
    assert models_folder(Path("/d")) == Path("/d/models")
    monkeypatch.setenv("DUNLIN_MODELS", "/shared/models")
    assert models_folder(Path("/d")) == Path("/shared/models")


FILES = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


def test_the_builtin_model_is_made_once_and_whole(tmp_path: Path) -> None:
    directory = resolve_model("builtin:tiny", tmp_path / "cache")
    assert sorted(path.name for path in directory.iterdir()) == FILES
    written = (directory / "model.safetensors").stat().st_mtime_ns
    assert resolve_model("builtin:tiny", tmp_path / "cache") == directory
    assert (directory / "model.safetensors").stat().st_mtime_ns == written
    config = load_config(directory)
    assert (config.layers, config.hidden, config.heads, config.kv_heads, config.head_dim) == (4, 256, 8, 4, 32)
    assert (config.vocab, config.max_positions) == (load_tokenizer(directory).vocab_size, 16384)
    assert load_chat_template(directory).render([{"role": "user", "content": "Hi"}]).endswith("<|assistant|>\n")


def test_many_may_ask_for_the_builtin_model_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: resolve_model("builtin:tiny", tmp_path), range(4)))
    assert len(found) == 1
    name = found.pop().name
    assert sorted(path.name for path in tmp_path.iterdir()) == [name, f"{name}.lock"], "no scratch is left behind"


def test_any_other_name_is_a_directory_or_an_error(tmp_path: Path) -> None:
    assert resolve_model("/some/where", tmp_path) == Path("/some/where")
    with pytest.raises(ModelError, match="no such built-in model; choose one of builtin:tiny, builtin:chat"):
        resolve_model("builtin:huge", tmp_path)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(ModelError, match="cannot be made"):
        resolve_model("builtin:tiny", tmp_path / "cache")


def test_clients_call_a_model_by_the_chosen_name_its_own_or_its_directorys(tmp_path: Path) -> None:
    assert served_name("builtin:tiny") == "builtin:tiny"
    assert served_name(str(tmp_path / "qwen" / ".." / "llama")) == "llama"
    assert served_name(f"{tmp_path}/llama/") == "llama"
    assert served_name("builtin:tiny", "chosen") == served_name(str(tmp_path), "chosen") == "chosen"
