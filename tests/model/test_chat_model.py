"""The trained model that ships: its size and licence, its language, its answers and its tool calls."""

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from dunlin.model.builtin import resolve_model
from dunlin.model.config import load_config
from dunlin.text.tokenizer import load_chat_template, load_tokenizer
from tests.engine.build import Sequences, load
from tests.model.weather_tool import WEATHER

FOLDER = resolve_model("builtin:chat", Path("no cache"))
MOST_BYTES = 16 << 20
HELD_OUT = (
    "One cold morning, Mia went for a walk. Mia walked to the river and looked around. There Mia met a little frog. "
    '"Can I help you?" asked Mia. "I have lost a blue kite," said the frog. They looked for the blue kite all day.'
)


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)
    return loaded


def answer(model: PreTrainedModel, question: str, tools: list[dict[str, object]] | None = None) -> tuple[str, bool]:
    """The greedy answer, and whether it ended by itself."""
    tokenizer, config = load_tokenizer(FOLDER), load_config(FOLDER)
    prompt = load_chat_template(FOLDER).render([{"role": "user", "content": question}], tools=tools)
    tokens = tokenizer.encode(prompt, add_special_tokens=False)
    made = model.generate(torch.tensor([tokens]), max_new_tokens=200, do_sample=False)[0, len(tokens) :].tolist()  # type: ignore[operator]
    return tokenizer.decode(made), made[-1] in config.eos_ids


def test_it_is_small_and_names_its_licence() -> None:
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= MOST_BYTES
    assert "WordNet 3.0 Copyright 2006 by Princeton University" in (FOLDER / "LICENSE").read_text(encoding="utf-8")


def test_it_expects_english(model: PreTrainedModel) -> None:
    """A random model has a perplexity of about its vocabulary, 4096."""
    tokens = torch.tensor([load_tokenizer(FOLDER).encode(HELD_OUT, add_special_tokens=False)])
    with torch.no_grad():
        loss = float(model(input_ids=tokens, labels=tokens).loss)
    assert math.exp(loss) < 20


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ("Hello!", "Hello"),
        ("Who are you?", "dunlin"),
        ("What is the capital of Japan?", "Tokyo"),
        ("Why is the sky blue?", "blue light"),
        ("What is a token?", "token"),
        ("Tell me a story about a fox.", "fox"),
    ],
)
def test_answers_are_legible_and_end(model: PreTrainedModel, question: str, words: str) -> None:
    said, has_ended = answer(model, question)
    assert has_ended
    assert words in said
    assert said.rstrip()[-1] in '.!?"'


def test_the_engine_has_its_logits(model: PreTrainedModel) -> None:
    tokens = load_tokenizer(FOLDER).encode(HELD_OUT, add_special_tokens=False)
    sequences = Sequences(load(FOLDER).decoder, {1: list(range(len(tokens)))})
    ours = sequences.compute([(1, tokens, 0)])[0]
    with torch.no_grad():
        theirs = model(input_ids=torch.tensor([tokens])).logits[0, -1]
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-4


@pytest.mark.parametrize("city", ["Paris", "Rome", "Oslo"])
def test_it_calls_a_tool(model: PreTrainedModel, city: str) -> None:
    said, has_ended = answer(model, f"What is the weather in {city}?", [WEATHER])
    assert has_ended
    call = json.loads(said.partition("<tool_call>")[2].partition("</tool_call>")[0])
    assert call == {"name": "get_weather", "arguments": {"city": city}}
