"""The served model: its name, limits and files; no weights are needed."""

import json
from pathlib import Path

import pytest

from dunlin.messages.public import ChatMessage
from dunlin.model.errors import ModelError
from services.dispatcher.admission.refusals import DoorError
from services.dispatcher.doors.generation.prompts import PromptEncoder
from services.dispatcher.doors.generation.served_model import load_served_model
from tests.services.dispatcher.running_doors import DATA


def write_model(directory: Path, **config: object) -> Path:
    directory.mkdir()
    shape = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 4096, "max_position_embeddings": 77,
        "eos_token_id": [2, 3],
    }  # fmt: skip
    (directory / "config.json").write_text(json.dumps({**shape, **config}))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((DATA / name).read_bytes())
    return directory


def test_a_model_is_known_by_its_folder_and_needs_no_weights(tmp_path: Path) -> None:
    model = load_served_model(str(write_model(tmp_path / "small-llama")), tmp_path)
    assert (model.name, model.max_positions, model.vocabulary) == ("small-llama", 77, 4096)
    assert model.eos_ids == (2, 3)
    assert model.render([ChatMessage("user", "Hi")]).endswith("<|assistant|>\n")
    assert load_served_model(str(tmp_path / "small-llama"), tmp_path, "mine").name == "mine"


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_a_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    directory = write_model(tmp_path / "m")
    (directory / missing).unlink()
    with pytest.raises(ModelError, match=missing):
        load_served_model(str(directory), tmp_path)


def add_token(directory: Path, text: str, *, special: bool) -> None:
    """As the first id beyond the model's embeddings."""
    path = directory / "tokenizer.json"
    values = json.loads(path.read_text())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": special}
    values["added_tokens"].append({"id": 4096, "content": text, **flags})
    path.write_text(json.dumps(values))


def test_a_special_token_without_an_embedding_is_refused_where_a_prompt_has_it(tmp_path: Path) -> None:
    """Gemma 3's tokenizer has one for images, also beside models of text alone, whose embeddings end before it."""
    directory = write_model(tmp_path / "m")
    add_token(directory, "<image_soft_token>", special=True)
    prompts = PromptEncoder(load_served_model(str(directory), tmp_path))
    assert len(prompts.encode("image soft token")) > 2
    for prompt in ("a<image_soft_token>b", (ChatMessage("user", "<image_soft_token>"),)):
        with pytest.raises(DoorError, match="token id 4096 is outside the vocabulary of 4096"):
            prompts.encode(prompt)


def test_a_token_of_text_without_an_embedding_is_another_models(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m")
    add_token(directory, "word", special=False)
    with pytest.raises(ModelError, match="token ids up to 4096"):
        load_served_model(str(directory), tmp_path)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such directory"):
        load_served_model(str(tmp_path / "nothing"), tmp_path)
