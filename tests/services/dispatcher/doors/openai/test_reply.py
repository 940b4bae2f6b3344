"""Answers hold only numbers that JSON has."""

import json
import math

import pytest

from dunlin.messages.types import FinishReason, f32, i32
from services.dispatcher.doors.generation.output import OutputPiece
from services.dispatcher.doors.openai.prompt_reply import MIN_LOGPROB
from services.dispatcher.doors.openai.reply import ChatReply, CompletionReply
from tests.services.dispatcher.running_doors import model


@pytest.mark.parametrize("kind", [CompletionReply, ChatReply])
def test_a_token_that_the_model_excludes_has_the_least_logprob(kind: type[CompletionReply] | type[ChatReply]) -> None:
    tops = i32([7, 8])
    piece = OutputPiece(
        "x", i32([7]), i32([0]), f32([-0.5]), i32([2]), tops, f32([-0.5, -math.inf]), FinishReason.LENGTH
    )
    reply = kind("id", 1, "m", model().tokenizer, 2)
    text = json.dumps(reply.full_reply([piece], {}), allow_nan=False)
    assert (str(MIN_LOGPROB) in text, "-0.5" in text) == (True, True)
