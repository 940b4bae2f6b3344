"""What answers say of prompts: their text, their log-probabilities in OpenAI's form and in vLLM's."""

import json
import math
from typing import Any

import pytest

from dunlin.messages.door import PromptLogprobs
from dunlin.messages.types import I32, FinishReason, f32, i32
from services.dispatcher.doors.generation.output import OutputPiece
from services.dispatcher.doors.openai.prompt_reply import MIN_LOGPROB, AnsweredPrompts
from services.dispatcher.doors.openai.reply import ChatReply, CompletionReply
from tests.services.dispatcher.running_doors import model

TOKENIZER = model().tokenizer


def tokens_of(text: str) -> I32:
    return i32(TOKENIZER.encode(text, add_special_tokens=False))


def scores(*logprobs: float, best: int = 0) -> PromptLogprobs:
    """Of as many tokens as there are logprobs; the likeliest everywhere are tokens 70, 71, …"""
    count = len(logprobs)
    tops = i32([70 + place for _ in logprobs for place in range(best)])
    return PromptLogprobs(best, f32(logprobs), i32([9] * count), tops, f32([-0.25] * count * best))


def reply(prompts: AnsweredPrompts, logprobs: int | None = None) -> CompletionReply:
    return CompletionReply("id", 1, "m", TOKENIZER, logprobs, (), False, prompts)


def answer(prompt: PromptLogprobs | None = None, text: str = " end") -> OutputPiece:
    tokens = tokens_of(text)
    empty = i32([0] * len(tokens))
    return OutputPiece(text, tokens, empty, f32([-0.5] * len(tokens)), empty, finish=FinishReason.STOP, prompt=prompt)


def test_the_prompt_stands_before_each_of_its_answers() -> None:
    asked = AnsweredPrompts([tokens_of("Once, naïve 🐦"), tokens_of("upon")], 2, True, None, TOKENIZER)
    whole = reply(asked).full_reply([answer()] * 4, {})
    assert [one["text"] for one in whole["choices"]] == ["Once, naïve 🐦 end"] * 2 + ["upon end"] * 2
    assert [one["logprobs"] for one in whole["choices"]] == [None] * 4


def test_with_logprobs_the_prompts_tokens_stand_before_the_texts() -> None:
    prompt = tokens_of("Once upon a")
    asked = AnsweredPrompts([prompt], 1, True, None, TOKENIZER)
    found = reply(asked, 2).full_reply([answer(scores(-1.0, -math.inf, best=3))], {})["choices"][0]["logprobs"]
    assert len(prompt) == 3
    assert "".join(found["tokens"]) == "Once upon a end"
    assert found["token_logprobs"] == [None, -1.0, MIN_LOGPROB, -0.5]
    assert found["text_offset"] == [0, 4, 9, 11]
    assert (found["top_logprobs"][0], [len(top) for top in found["top_logprobs"][1:3]]) == (None, [2, 2])


def test_in_a_stream_the_prompt_stands_before_the_first_piece_alone() -> None:
    asked = AnsweredPrompts([tokens_of("Once upon")], 1, True, None, TOKENIZER)
    made = reply(asked, 0)
    first, second = (made.chunk(0, answer(one))["choices"][0] for one in (scores(-1.0), None))
    assert (first["text"], second["text"]) == ("Once upon end", " end")
    assert first["logprobs"]["token_logprobs"] == [None, -1.0, -0.5]
    assert (second["logprobs"]["token_logprobs"], second["logprobs"]["text_offset"]) == ([-0.5], [9])


def test_vllms_field_names_tokens_by_their_ids() -> None:
    prompt = i32([72, 71, 72])
    asked = AnsweredPrompts([prompt], 1, False, 2, TOKENIZER)
    (choice,) = reply(asked).full_reply([answer(scores(-1.0, -2.0, best=2))], {})["choices"]
    first, second, third = choice["prompt_logprobs"]
    assert (choice["text"], first) == (" end", None)
    named = {"logprob": -1.0, "rank": 9, "decoded_token": TOKENIZER.token_text(71)}
    assert second == {"71": named, "70": {"logprob": -0.25, "rank": 1, "decoded_token": TOKENIZER.token_text(70)}}
    assert list(third) == ["72", "70", "71"]
    json.dumps(choice, allow_nan=False)


@pytest.mark.parametrize(("best", "said"), [(0, [None, {"71": -1.0}]), (None, "nothing")])
def test_a_chats_answer_has_it_beside_its_choices(best: int | None, said: Any) -> None:
    asked = AnsweredPrompts([i32([72, 71])], 1, False, best, TOKENIZER)
    prompts = asked if asked.are_shown else None
    whole = ChatReply("id", 1, "m", TOKENIZER, None, (), False, prompts).full_reply([answer(scores(-1.0))], {})
    found = whole.get("prompt_logprobs", "nothing")
    assert (found if best is None else [one and {key: one[key]["logprob"] for key in one} for one in found]) == said


def test_a_prompt_of_one_token_has_no_log_probability() -> None:
    asked = AnsweredPrompts([i32([72])], 1, True, 3, TOKENIZER)
    (choice,) = reply(asked, 1).full_reply([answer()], {})["choices"]
    assert choice["prompt_logprobs"] == [None]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5]
