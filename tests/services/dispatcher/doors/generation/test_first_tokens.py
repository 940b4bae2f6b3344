"""A prompt begins with the tokens that the tokenizer puts there, once: as transformers encodes it."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from dunlin.messages.public import ChatMessage
from dunlin.text.chat_template import DEFAULT_TEMPLATE
from dunlin.text.tokenizer import load_chat_template, load_tokenizer
from services.dispatcher.doors.generation.prompts import PromptEncoder
from services.dispatcher.doors.generation.served_model import ServedModel

BOS = 1
CHAT = (ChatMessage("user", "ab a"),)
LLAMAS_TEMPLATE = "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"


def checkpoint(folder: Path, begins: bool, template: str | None) -> PreTrainedTokenizerFast:
    """A tokenizer as Llama 2's, which begins a text with `<s>` if it `begins`; the one of transformers."""
    letters = sorted(set(DEFAULT_TEMPLATE + "user: ab▁") - {"\n"})
    vocab = {name: at for at, name in enumerate(["<unk>", "<s>", "</s>", *letters])}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    made.decoder = decoders.Metaspace(prepend_scheme="first")
    if begins:
        made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    made.save(str(folder / "tokenizer.json"))
    named = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = named if template is None else {**named, "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), chat_template=template, **named)  # type: ignore[no-untyped-call]


def encoder(folder: Path) -> PromptEncoder:
    tokenizer, template = load_tokenizer(folder), load_chat_template(folder)
    return PromptEncoder(ServedModel("m", 100, 100, (2,), tokenizer, template, folder))


@pytest.mark.parametrize("begins", [False, True])
def test_a_completion_is_encoded_as_by_transformers(tmp_path: Path, begins: bool) -> None:
    theirs = checkpoint(tmp_path, begins, None)
    tokens = list(encoder(tmp_path).encode("ab a"))
    assert tokens == theirs("ab a")["input_ids"]
    assert tokens.count(BOS) == begins


@pytest.mark.parametrize("begins", [False, True])
def test_a_chat_by_a_template_has_what_the_template_writes(tmp_path: Path, begins: bool) -> None:
    theirs = checkpoint(tmp_path, begins, LLAMAS_TEMPLATE)
    tokens = list(encoder(tmp_path).encode(CHAT))
    wanted = theirs.apply_chat_template([{"role": "user", "content": "ab a"}], return_dict=False)
    assert tokens == wanted
    assert tokens.count(BOS) == 1


@pytest.mark.parametrize("begins", [False, True])
def test_a_chat_without_a_template_begins_as_any_text_of_the_model(tmp_path: Path, begins: bool) -> None:
    """It had no `<s>`: what follows was another text to the model."""
    theirs = checkpoint(tmp_path, begins, None)
    tokens = list(encoder(tmp_path).encode(CHAT))
    assert tokens == theirs("user: ab a\nassistant:")["input_ids"]
    assert tokens.count(BOS) == begins
