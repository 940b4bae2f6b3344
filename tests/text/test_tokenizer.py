"""The built-in tokenizer, its chat template, and files that are broken."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dunlin.model.errors import ModelError
from dunlin.text.chat_template import ChatTemplate, ChatTemplateError
from dunlin.text.tokenizer import load_chat_template, load_tokenizer
from tests.text.builtin import BUILTIN, EMOJI


def test_text_comes_back() -> None:
    tokenizer = load_tokenizer(BUILTIN)
    text = f"Hello, wörld! {EMOJI}\n\tdef f(x): return 1234567"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.vocab_size == 4096


def test_common_words_are_single_tokens() -> None:
    assert len(load_tokenizer(BUILTIN).encode(" the server explained the bird")) <= 6


def test_a_token_by_itself() -> None:
    tokenizer = load_tokenizer(BUILTIN)
    emoji = tokenizer.encode(EMOJI)
    assert b"".join(tokenizer.token_bytes(token) for token in emoji) == EMOJI.encode()
    assert tokenizer.token_text(1) == "<|end|>"
    assert tokenizer.token_bytes(1) == b""


def test_the_committed_vocabulary_is_what_its_script_makes(tmp_path: Path) -> None:
    copy = shutil.copytree(BUILTIN, tmp_path / "data")
    (copy / "tokenizer.json").unlink()
    subprocess.run([sys.executable, str(copy / "make_tokenizer.py")], check=True, timeout=300)
    made, committed = (json.loads((folder / "tokenizer.json").read_text()) for folder in (copy, BUILTIN))
    assert made == committed


def test_a_chat_becomes_a_prompt() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    wanted = "<|begin|><|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\n"
    assert load_chat_template(BUILTIN).render(messages) == wanted
    assert load_tokenizer(BUILTIN).encode(wanted, add_special_tokens=False)[:2] == [0, 3]


def test_without_a_template_a_plain_one_serves(tmp_path: Path) -> None:
    assert load_chat_template(tmp_path).render([{"role": "user", "content": "Hi"}]) == "user: Hi\nassistant:"


@pytest.mark.parametrize(
    "messages", [[{"role": "robot", "content": "x"}], [{"role": "user"}], [{"role": "user", "content": None}]]
)
def test_messages_that_do_not_fit_are_refused(messages: list[dict[str, str]]) -> None:
    with pytest.raises(ChatTemplateError, match="chat template cannot take"):
        load_chat_template(BUILTIN).render(messages)


def test_a_template_cannot_reach_out_of_its_sandbox() -> None:
    template = ChatTemplate("{{ messages.__class__.__mro__[1].__subclasses__() }}", {}, Path("x"))
    with pytest.raises(ChatTemplateError):
        template.render([])


def test_a_template_that_does_not_compile_names_its_file(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{% for %}"}))
    with pytest.raises(ModelError, match=r"tokenizer_config.json: has a chat template that does not compile"):
        load_chat_template(tmp_path)


def test_other_files_for_a_template(tmp_path: Path) -> None:
    config = {"chat_template": [{"name": "default", "template": "{{ bos_token }}D"}], "bos_token": {"content": "<s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_chat_template(tmp_path).render([]) == "<s>D"
    (tmp_path / "chat_template.jinja").write_text("J{{ bos_token }}")
    assert load_chat_template(tmp_path).render([]) == "J<s>"


def test_a_missing_or_broken_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="is no tokenizer"):
        load_tokenizer(tmp_path)
