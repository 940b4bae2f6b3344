"""The built-in tokenizer, its chat template, and files that are broken."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerFast

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


@pytest.mark.parametrize("source", ["{% for %}", "{% for x in y %}" * 30 + "{% endfor %}" * 30, "{{" + "(" * 9_999])
def test_a_template_that_does_not_compile_names_its_file(tmp_path: Path, source: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": source}))
    with pytest.raises(ModelError, match=r"tokenizer_config.json: has a chat template that does not compile"):
        load_chat_template(tmp_path)


def test_other_files_for_a_template(tmp_path: Path) -> None:
    config = {"chat_template": [{"name": "default", "template": "{{ bos_token }}D"}], "bos_token": {"content": "<s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_chat_template(tmp_path).render([]) == "<s>D"
    (tmp_path / "chat_template.jinja").write_text("J{{ bos_token }}")
    assert load_chat_template(tmp_path).render([]) == "J<s>"


TOOL: dict[str, object] = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize("as_list", [True, False])
@pytest.mark.parametrize("tools", [None, [TOOL]])
def test_of_several_templates_those_are_taken_that_transformers_takes(
    tmp_path: Path, as_list: bool, tools: list[dict[str, object]] | None
) -> None:
    """As Hermes 2 Pro has them, and with the names that a template may call special tokens by."""
    spelled = "{{ bos_token }}{{ unk_token }}{{ pad_token }}{{ messages[0].content }}"
    named = {"default": f"D{spelled}", "tool_use": f"T{spelled}{{{{ tools | tojson }}}}", "rag": "R"}
    listed = [{"name": name, "template": text} for name, text in named.items()]
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": listed if as_list else named,
        "bos_token": "<|begin|>",
        "unk_token": "<|end|>",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    shutil.copy(BUILTIN / "tokenizer.json", tmp_path)
    theirs = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": "Hi"}]
    ours = load_chat_template(tmp_path)
    assert ours.render(messages, tools=tools) == theirs.apply_chat_template(messages, tools=tools, tokenize=False)
    assert ours.reads_tools


@pytest.mark.parametrize("template", [[{"name": "tool_use", "template": "T"}], {"rag": "R"}, [], [["default", "D"]], 7])
def test_several_templates_without_a_default_are_refused(tmp_path: Path, template: object) -> None:
    """In place of the model's own the plain one would be taken, which the model never saw."""
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    with pytest.raises(ModelError, match=r"tokenizer_config\.json: `chat_template` is neither a text nor a list"):
        load_chat_template(tmp_path)


def test_a_missing_or_broken_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no such file"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ModelError, match="is no tokenizer"):
        load_tokenizer(tmp_path)
