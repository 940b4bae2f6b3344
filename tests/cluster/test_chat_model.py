"""The trained model that ships, served: an answer that ends by itself, and a tool call for the openai client."""

import json
from typing import Any

import openai
import pytest

from cli.launch.cluster_process import ClusterProcess
from tests.model.weather_tool import WEATHER

pytestmark = pytest.mark.cluster


@pytest.fixture
def completions(chat_cluster: ClusterProcess) -> Any:
    return openai.OpenAI(base_url=f"{chat_cluster.http}/v1", api_key="none", max_retries=0).chat.completions


def test_an_answer_ends_by_itself(completions: Any) -> None:
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    said = completions.create(model="builtin:chat", messages=asked, temperature=0, max_tokens=200).choices[0]
    assert said.finish_reason == "stop"
    assert said.message.content == "The capital of France is Paris."


def test_a_tool_is_called(completions: Any) -> None:
    asked = [{"role": "user", "content": "What is the weather in Paris?"}]
    said = completions.create(model="builtin:chat", messages=asked, tools=[WEATHER], temperature=0, max_tokens=200)
    (choice,) = said.choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
